//! Communication of this process with the service, the process `tidelaned`, which runs TCP.
//!
//! A session is the registration of this process with the service. A channel consists of rings in
//! shared memory and a doorbell, which is an eventfd that wakes sleeping threads. The default
//! channel serves the sockets that are in no epoll instance. An outage is a time without a service.
//!
//! | module | contents |
//! |---|---|
//! | `session` | the registration with the service: made on demand, given up in a forked child |
//! | `channel` | one channel, and the threads that sleep on its doorbell |
//! | `ring` | the context of a channel: its rings and its doorbell |
//! | `batch_member` | the membership of a socket in the set that one `epoll_wait` returned |
//! | `channels` | all channels of the process, and the default channel |
//! | `assign` | moving the events of a connection to another channel |
//! | `thread_channels` | channels of threads that wait in blocking calls |
//! | `default_polling` | epoll instances that poll the default channel besides their own channels |
//! | `connection` | a connection and the session that it belongs to |
//! | `internal_events` | events of this crate's own descriptors in the program's epoll instances |
//! | `outage` | listeners and sleeping threads during an outage |
//! | `outer_channels` | the channels of epoll instances that contain another instance |
//! | `exceptions` | sockets that are left to the kernel on purpose |
//! | `sleep_fds` | the kernel epoll instances on which threads wait for a channel's doorbell |
//! | `spin_record` | whether a thread polls before it sleeps |
//! | `report` | reports about sockets that stay with the kernel |
//! | `within_host` | connections over loopback and to the host's own addresses |

mod assign;
pub(crate) mod batch_member;
pub(crate) mod channel;
pub(crate) mod channels;
pub(crate) mod connection;
pub(crate) mod default_polling;
pub(crate) mod exceptions;
pub(crate) mod internal_events;
pub(crate) mod outage;
pub(crate) mod outer_channels;
pub(crate) mod report;
mod ring;
pub(crate) mod session;
pub(crate) mod sleep_fds;
mod spin_record;
pub(crate) mod thread_channels;
pub(crate) mod within_host;

pub use channel::Channel;
pub(crate) use connection::Connection;
