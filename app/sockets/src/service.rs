//! The process and the service: registration, the rings of its lanes, and what is left when the
//! service goes.
//!
//! | module | what |
//! |---|---|
//! | `session` | the registration: made when first needed, given up in a forked child |
//! | `lane` | a context with its rings and doorbell, and who sleeps on it |
//! | `lanes` | all lanes; the default one |
//! | `assign` | connections whose events come to another lane |
//! | `beside` | an epoll instance's lane that sleeps on the default one, too |
//! | `connection` | a connection and the session that it belongs to |
//! | `marks` | the library's own descriptors among an epoll instance's events |
//! | `outage` | the time without a service |
//! | `exceptions` | sockets that are left to the kernel by choice |
//! | `report` | sockets that stay with the kernel |
//! | `within_host` | connections over loopback that the service shall have |

mod assign;
pub(crate) mod beside;
pub(crate) mod connection;
pub(crate) mod exceptions;
pub(crate) mod lane;
pub(crate) mod lanes;
pub(crate) mod marks;
pub(crate) mod outage;
pub(crate) mod report;
pub(crate) mod session;
pub(crate) mod within_host;

pub(crate) use connection::Connection;
pub use lane::Lane;
