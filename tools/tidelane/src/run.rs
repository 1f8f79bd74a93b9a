//! `tidelane run`: executes a program, in place of this process, with Tidelane's library preloaded.
//! The library makes the service (`tidelaned`) carry the program's TCP connections.

use std::{
    env,
    ffi::{CString, OsStr, OsString},
    io,
    os::unix::{ffi::OsStrExt, process::CommandExt},
    process::Command,
};

use clap::Args;
use tidelane_client::{
    Program, RegisterError,
    exceptions::{Addresses, Exceptions, Ports, VARIABLE},
};

use crate::{
    admin::{ServiceName, sibling_path},
    failure::Failure,
};

/// Exit status if the program is not found, as in a shell.
const NOT_FOUND: u8 = 127;
/// Exit status if the program cannot be executed, as in a shell.
const NOT_EXECUTABLE: u8 = 126;

/// Options of `run`.
#[derive(Args, Debug)]
pub struct Options {
    #[command(flatten)]
    service: ServiceName,
    /// Fail a call that would fall back to the kernel's stack
    #[arg(long)]
    strict: bool,
    /// Permit io_uring, which the program must not use for sockets
    #[arg(long)]
    io_uring: bool,
    /// Accelerate connections over loopback, too, if both programs run with this option
    #[arg(long)]
    loopback: bool,
    /// Leave connections over loopback to the kernel, even if the service's configuration says
    /// loopback = true
    #[arg(long, conflicts_with = "loopback")]
    no_loopback: bool,
    #[command(flatten)]
    left: Left,
    /// Program and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    program: Vec<OsString>,
}

/// Options that leave sockets to the kernel.
#[derive(Args, Debug)]
struct Left {
    /// Leave all listeners to the kernel
    #[arg(long)]
    no_listen: bool,
    /// Leave all connections that the program opens to the kernel
    #[arg(long)]
    no_connect: bool,
    /// Leave listeners at these ports, and connections to these ports, to the kernel, such as 22 or
    /// 8000-8099
    #[arg(long, value_name = "PORTS")]
    kernel_port: Vec<Ports>,
    /// Leave listeners at these addresses, and connections to these addresses, to the kernel, such
    /// as 10.0.0.0/8
    #[arg(long, value_name = "PREFIX")]
    kernel_address: Vec<Addresses>,
}

impl Left {
    /// Returns the options as the exceptions that the preloaded library reads.
    fn exceptions(&self) -> Exceptions {
        Exceptions {
            listeners: self.no_listen,
            connections: self.no_connect,
            ports: self.kernel_port.clone(),
            addresses: self.kernel_address.clone(),
        }
    }
}

/// Executes the program in place of this process. Returns only if the program could not be started.
pub fn run(options: &Options) -> Result<(), Failure> {
    let library = sibling_path("libtidelane.so")?;
    let socket = options.service.control_socket();
    // This command must report a service of another version, because the library would silently
    // leave all sockets to the kernel.
    match Program::probe(&socket) {
        Ok(()) => {}
        Err(RegisterError::NotRunning) => return Err(options.service.not_running()),
        Err(error @ (RegisterError::NotAdmitted(_) | RegisterError::NotPermitted))
            if !options.strict =>
        {
            let name = &options.service.name;
            eprintln!("tidelane: service {name:?}: {error}; the program stays with the kernel");
        }
        Err(error) => {
            let name = &options.service.name;
            return Err(Failure::new(format!("service {name:?}: {error}")));
        }
    }
    let program = &options.program[0];
    warn_if_unsupported(program, options.strict)?;
    let mut preload = library.into_os_string();
    if let Some(others) = env::var_os("LD_PRELOAD").filter(|others| !others.is_empty()) {
        preload.push(":");
        preload.push(others);
    }
    let mut command = Command::new(program);
    command
        .args(&options.program[1..])
        .env("LD_PRELOAD", preload)
        .env("TIDELANE_SOCKET", socket)
        .env(VARIABLE, options.left.exceptions().to_string())
        .env("TIDELANE_STRICT", if options.strict { "1" } else { "0" });
    if options.loopback || options.no_loopback {
        command.env(
            "TIDELANE_LOOPBACK",
            if options.loopback { "1" } else { "0" },
        );
    }
    if options.io_uring {
        command.env("TIDELANE_IO_URING", "1");
    }
    let error = command.exec();
    let shown = program.to_string_lossy();
    Err(match error.kind() {
        io::ErrorKind::NotFound => {
            Failure::with_status(format!("{shown}: program not found"), NOT_FOUND)
        }
        _ => Failure::with_status(format!("{shown}: {error}"), NOT_EXECUTABLE),
    })
}

/// Prints a warning if the library cannot accelerate the program, for example because the program
/// is static. If `strict` is true, fails instead of printing the warning.
fn warn_if_unsupported(program: &OsStr, strict: bool) -> Result<(), Failure> {
    let search = env::var_os("PATH");
    let search = search.as_ref().map(|search| search.as_bytes());
    let name = CString::new(program.as_bytes()).unwrap_or_default();
    let Some(unsupported) = tidelane_inspect::inspect(&name, search) else {
        return Ok(());
    };
    let text = format!("{} {unsupported}", program.display());
    if strict {
        return Err(Failure::with_status(text, NOT_EXECUTABLE));
    }
    eprintln!("tidelane: {text}; its sockets stay with the kernel");
    Ok(())
}
