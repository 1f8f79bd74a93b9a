//! Steering against the running kernel, in network namespaces of its own. Needs root.

mod demux;
mod mirror;
mod net;
