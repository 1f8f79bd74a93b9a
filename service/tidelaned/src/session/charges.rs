//! The charges for a session (a connected program) to the account of the session's user. The
//! charges begin when the service accepts the session's socket. An account counts the resources
//! that a user holds, and enforces the user's limits. A charge ends when it is dropped.
//!
//! A core is a polling thread of the service. A context is the set of rings between a thread of a
//! program and the service, with an eventfd (doorbell) by which the cores wake the thread. A mux
//! port connects a program with a TCP/IP stack of its own to the NIC.

use std::sync::Arc;

use tidelane_abi::{message, port::PORT_DATA_OFFSET};
use tidelane_host::accounts::{Account, Charge, Refused, Resource, User};

/// Number of descriptors that the service holds for each session: the session's socket, and the
/// pidfd of the session's process.
const DESCRIPTORS: u64 = 2;
/// Number of a user's connections that raise the cost of INHERIT by one ordinary message. INHERIT
/// makes a child a further holder of all connections of a process.
const CONNECTIONS_PER_COST: u64 = 64;

/// The charges of a session.
#[derive(Debug)]
pub struct SessionCharges {
    account: Arc<Account>,
    _registration: Charge,
    _descriptors: Charge,
}

impl SessionCharges {
    /// Charges one more session to this account.
    pub fn take(account: Arc<Account>) -> Result<Self, Refused> {
        Ok(Self {
            _registration: account.charge(Resource::Registrations, 1)?,
            _descriptors: account.charge(Resource::Descriptors, DESCRIPTORS)?,
            account,
        })
    }

    /// Returns the charged account.
    pub fn account(&self) -> &Arc<Account> {
        &self.account
    }

    /// Returns the user of the account.
    pub fn user(&self) -> &Arc<User> {
        self.account.user()
    }

    /// Returns the cost of a message of this kind, in ordinary messages. The cost counts against
    /// the message rate of the user.
    pub fn cost(&self, kind: u32) -> u64 {
        match kind {
            // The service maps memory, and unmaps the memory at the end of the session.
            message::REGISTER | message::OPEN_PORT => 16,
            // The service visits all connections of the process. The user has at least this number
            // of connections.
            message::INHERIT => 16 + self.user().used(Resource::Connections) / CONNECTIONS_PER_COST,
            message::LISTEN
            | message::RESERVE
            | message::CLAIM_TUPLE
            | message::SUSPEND_LISTENER => 4,
            _ => 1,
        }
    }
}

/// The charges of a registered program.
#[derive(Debug)]
pub struct ProgramCharges {
    _program: Charge,
    contexts: Charge,
    descriptors: Charge,
}

impl ProgramCharges {
    /// Charges one more program, which has a doorbell for each of `cores` cores.
    pub fn take(account: &Arc<Account>, cores: usize) -> Result<Self, Refused> {
        Ok(Self {
            _program: account.charge(Resource::Programs, 1)?,
            contexts: account.charge(Resource::Contexts, 0)?,
            descriptors: account.charge(Resource::Descriptors, cores as u64)?,
        })
    }

    /// Charges one more context. Each of `cores` cores has a descriptor of the context's doorbell.
    pub fn add_context(&mut self, cores: usize) -> Result<(), Refused> {
        self.contexts.grow(1)?;
        let descriptors = self.descriptors.grow(cores as u64);
        if descriptors.is_err() {
            self.contexts.shrink(1);
        }
        descriptors
    }

    /// Reverts the charge of a context that was refused.
    pub fn drop_context(&mut self, cores: usize) {
        self.contexts.shrink(1);
        self.descriptors.shrink(cores as u64);
    }
}

/// The charges of a mux port. A claim of a 3-tuple (protocol, address, port) is charged separately.
#[derive(Debug)]
pub struct PortCharges {
    _program: Charge,
    _ring_bytes: Charge,
    _descriptors: Charge,
}

impl PortCharges {
    /// Charges one more mux port with packet rings of `ring_len` bytes for each direction on each
    /// of `cores` cores.
    pub fn take(account: &Arc<Account>, cores: usize, ring_len: u32) -> Result<Self, Refused> {
        let cores = cores as u64;
        let memory = PORT_DATA_OFFSET + u64::from(ring_len);
        // The program's doorbell, and for each core a doorbell and the descriptors of two memories.
        let descriptors = 1 + 3 * cores;
        Ok(Self {
            _program: account.charge(Resource::Programs, 1)?,
            _ring_bytes: account.charge(Resource::RingBytes, 2 * cores * memory)?,
            _descriptors: account.charge(Resource::Descriptors, descriptors)?,
        })
    }
}
