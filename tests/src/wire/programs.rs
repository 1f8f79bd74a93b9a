//! The services (processes of `tidelaned`) and programs that are started in the namespaces of a
//! wire (test network).

use std::{fs, time::Duration};

use super::{INTERFACE, Side, Wire, cores};
use crate::{Stop, nics, program::Program, running::Running, service::Service, tools};

impl Wire {
    /// Starts a service on the server's interface and waits until the service is ready. A service
    /// that a function of this type starts admits all users, except where the documentation of the
    /// function says otherwise.
    pub fn service(&self) -> Result<Service, Stop> {
        self.service_with(Side::Server, &[])
    }

    /// Starts a service on the server's interface under the name of `dead`, a service that has
    /// ended, so that the programs of `dead` find the new service.
    pub fn service_again(&self, dead: &Service) -> Result<Service, Stop> {
        Service::up(self, (Side::Server, INTERFACE), dead.name(), &[], None)
    }

    /// Starts a service on the client's interface under the name of `dead`, a service that has
    /// ended.
    pub fn client_service_again(&self, dead: &Service) -> Result<Service, Stop> {
        Service::up(self, (Side::Client, INTERFACE), dead.name(), &[], None)
    }

    /// Starts a service on the interface of `side`, with one core (packet-processing thread) on
    /// each CPU of the list `cores`. All other threads of the service run on the same CPUs.
    /// `options` are options of `tidelane up`.
    pub fn service_on_cores(
        &self,
        side: Side,
        cores: &str,
        options: &[&str],
    ) -> Result<Service, Stop> {
        let options = [&["--cores", cores], options].concat();
        self.start_service((side, INTERFACE), &options, Some(cores))
    }

    /// Starts a service on the server's interface. `config` is the text of the service's
    /// configuration file, which also decides which users the service admits. `options` are further
    /// options of `tidelane up`.
    pub fn configured_service(&self, config: &str, options: &[&str]) -> Result<Service, Stop> {
        let path = self
            .scratch
            .join(format!("config-{}.toml", self.services.borrow()));
        fs::write(&path, config)?;
        let path = path.to_string_lossy();
        self.service_with(Side::Server, &[&["--config", &path], options].concat())
    }

    /// Starts a service on the interface of `side`. `options` are options of `tidelane up`.
    pub fn service_with(&self, side: Side, options: &[&str]) -> Result<Service, Stop> {
        self.start_service((side, INTERFACE), options, None)
    }

    /// Starts a service on the interface `interface` of the server's namespace. `options` are
    /// options of `tidelane up`.
    pub fn service_on_interface(&self, interface: &str, options: &[&str]) -> Result<Service, Stop> {
        self.start_service((Side::Server, interface), options, None)
    }

    /// Starts a service on the server's interface, in a new PID namespace.
    pub fn service_in_pid_namespace(&self) -> Result<Service, Stop> {
        Service::up_in_pid_namespace(self, Side::Server, &self.name_service()?)
    }

    /// Starts a service on the server's interface with an empty configuration. The service reads
    /// `groups`, the text of a file, as its `/etc/group`.
    pub fn service_with_groups(&self, groups: &str) -> Result<Service, Stop> {
        let path = self.scratch.join("group");
        fs::write(&path, groups)?;
        Service::up_with_groups(self, Side::Server, &self.name_service()?, &path)
    }

    /// Returns a new name for a service, and registers the service's files with the guardian
    /// (cleanup process).
    fn name_service(&self) -> Result<String, Stop> {
        let name = {
            let mut services = self.services.borrow_mut();
            *services += 1;
            format!("{}-{services}", self.id)
        };
        self.guardian.borrow_mut().register("run", &name)?;
        Ok(name)
    }

    /// Starts a service on the interface `end`. If `cpus` is given, the service runs only on these
    /// CPUs. If TIDELANE_CORES is more than 1 and `options` do not contain `--cores`, adds
    /// `--cores`.
    fn start_service(
        &self,
        end: (Side, &str),
        options: &[&str],
        cpus: Option<&str>,
    ) -> Result<Service, Stop> {
        let name = self.name_service()?;
        let all = format!("0-{}", cores() - 1);
        let as_told = cores() == 1 || options.contains(&"--cores");
        let added = if as_told { &[][..] } else { &["--cores", &all] };
        let service = Service::up(self, end, &name, &[options, added].concat(), cpus)?;
        if nics::are_named() && end.1 == INTERFACE {
            // Some NICs lose the carrier while the driver sets up the rings of AF_XDP.
            nics::wait_for_carrier(&self.namespace(end.0), INTERFACE)?;
        }
        Ok(service)
    }

    /// Returns the program `name`, a path or a tool's name, to start in the namespace of `side`.
    pub fn program(&self, side: Side, name: &str) -> Program {
        Program::new(self, side, name)
    }

    /// Returns the program `tidelane-load` with the subcommand `tool`, such as `echo-server`, to
    /// start in the namespace of `side`.
    pub fn load_tool(&self, side: Side, tool: &str) -> Result<Program, Stop> {
        let path = tools::binary("tidelane-load")?;
        Ok(self.program(side, &path.to_string_lossy()).arg(tool))
    }

    /// Starts `program`: on `service` if `service` is given, or else on the kernel. Waits until a
    /// kernel socket listens on `port` in the server's namespace. If `service` is given, also waits
    /// until the service has the listener. If the program ends, fails with the program's output.
    pub fn start_server(
        &self,
        program: Program,
        service: Option<&Service>,
        port: u16,
    ) -> Result<Running, Stop> {
        let mut server = program.on(service).spawn()?;
        tools::wait_until(
            Duration::from_secs(10),
            &format!("port {port} to listen"),
            || {
                server.check_alive()?;
                self.listens(Side::Server, port)
            },
        )?;
        let Some(service) = service else {
            return Ok(server);
        };
        let what = format!("an accelerated listener on port {port}");
        let accelerated = tools::wait_until(Duration::from_secs(10), &what, || {
            server.check_alive()?;
            service.has_listener(port)
        });
        match accelerated {
            Ok(()) => Ok(server),
            Err(Stop::Fail(text)) => Err(Stop::Fail(format!(
                "{text}; there are {:#?}",
                service.sockets()?
            ))),
            Err(other) => Err(other),
        }
    }
}
