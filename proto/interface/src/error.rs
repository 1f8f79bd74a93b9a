//! Reasons for which the TCP engine (crate `tidelane-engine`) refuses a request.

use core::fmt;

macro_rules! refusal {
    ($(#[$doc:meta])* $name:ident { $($(#[$vdoc:meta])* $variant:ident => $text:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub enum $name {
            $($(#[$vdoc])* $variant,)+
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(match self {
                    $(Self::$variant => $text,)+
                })
            }
        }

        impl core::error::Error for $name {}
    };
}

refusal! {
    /// Reason why a listener was not created.
    ListenError {
        /// Another listener has the same port, and its address is equal or an overlapping wildcard
        /// address. The two listeners may not share the port.
        InUse => "there is a listener on this address and port",
        /// The largest number of listeners is reached.
        Full => "too many listeners",
        /// The port is zero, or the address is multicast or broadcast.
        BadEndpoint => "not an endpoint to listen on",
    }
}

refusal! {
    /// Reason why an active open was not started.
    OpenError {
        /// A flow has this 4-tuple, or the 4-tuple is in TIME-WAIT and may not be reused yet.
        InUse => "a connection with this 4-tuple exists",
        /// The largest number of flows is reached.
        Full => "too many flows",
        /// A port is zero, an address is unspecified, multicast or broadcast, the two addresses
        /// have different IP versions, or the MTU of the link is too small.
        BadEndpoint => "not endpoints that can be connected",
    }
}

refusal! {
    /// Reason why a request of an application was ignored. `tx_head` is the stream position after
    /// the last byte that the application has written. `rx_read` is the stream position after the
    /// last byte that the application has read.
    Misuse {
        /// There is no such flow.
        NoFlow => "no such flow",
        /// `tx_head` went backwards or beyond the limit of the send buffer.
        TxHead => "tx_head went backwards or past the limit",
        /// `tx_head` advanced after the sending direction was closed.
        TxAfterShutdown => "tx_head moved after shutdown",
        /// The urgent data is already acknowledged, or its end is beyond the limit of the send
        /// buffer.
        Urgent => "urgent data ends outside of what may be written",
        /// `rx_read` went backwards or beyond the received data.
        RxRead => "rx_read went backwards or past rx_head",
    }
}
