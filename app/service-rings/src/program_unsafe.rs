//! [`ServiceProgram`]: the registration of a program with the service (the process `tidelaned`).

use std::io;

use tidelane_client::Program;

use crate::{context::ServiceContext, error::ServiceError, options::ServiceOptions};

/// A program that is registered with the service. Each thread opens its own context (the sockets of
/// one thread). The registration ends when all clones of this value, all contexts, and all buffers
/// with memory of the service are dropped.
#[derive(Clone, Debug)]
pub struct ServiceProgram {
    program: Program,
    options: ServiceOptions,
}

impl ServiceProgram {
    /// Registers the program with the service.
    ///
    /// # Errors
    ///
    /// A [`ServiceError`] inside the [`io::Error`] gives the reason, and usually a remedy.
    pub fn register(options: &ServiceOptions) -> io::Result<Self> {
        let program = Program::register(&options.socket, &options.name);
        Ok(Self {
            program: program.map_err(ServiceError::from)?,
            options: options.clone(),
        })
    }

    /// Opens a context for the calling thread.
    ///
    /// # Errors
    ///
    /// `QuotaExceeded` if the user's limit of contexts is reached, or if the program's limit of
    /// contexts is reached, which also counts closed contexts. `InvalidInput` for impossible
    /// options. Other errors are those of the service and of the operating system.
    pub fn context(&self) -> io::Result<ServiceContext> {
        ServiceContext::of_program(self.program.clone(), &self.options)
    }
}

/// Opens a context of a service in this process, for simulations and tests. A wait on this context
/// returns immediately.
///
/// # Errors
///
/// The errors of [`ServiceProgram::context`].
///
/// # Safety
///
/// The service and all other code of this process obey the rules of the shared memory: they do not
/// overwrite received bytes before the program has read the bytes, and do not access the free part
/// of a send buffer, to which the program writes.
pub unsafe fn context_in_memory(
    program: Program,
    options: &ServiceOptions,
) -> io::Result<ServiceContext> {
    ServiceContext::of_program(program, options)
}
