//! The options of a context (the TCP and UDP sockets of one thread), and its back end: the TCP/IP
//! stack that carries the connections of the context.

use tidelane_direct_nic::NicOptions;
use tidelane_kernel::{KernelContext, KernelOptions};
use tidelane_rings::Context;
use tidelane_service_rings::{ServiceContext, ServiceOptions};

use crate::{
    error::Error,
    types::{DIRECT, IO_URING, Options, SERVICE, STEERED},
};

/// The options of a context, with copies of the strings to which the C structure points.
#[derive(Clone, Debug, Default)]
pub struct BackEndOptions {
    /// The C structure. Only its numbers are used; the two other fields replace its pointers.
    pub numbers: Options,
    /// Name of the network interface, for [`DIRECT`].
    pub interface: Option<String>,
    /// Path of the socket of the Tidelane service, for [`SERVICE`].
    pub service: Option<String>,
}

impl BackEndOptions {
    /// Opens a context on the back end that the options name.
    pub fn open(&self) -> Result<Box<dyn Context>, Error> {
        let numbers = &self.numbers;
        if numbers.reserved != [0; 4] || numbers.padding != 0 {
            return Err(Error::RESERVED);
        }
        match numbers.back_end {
            0 | IO_URING => {
                self.check_foreign(
                    &[numbers.queue, numbers.flags],
                    &[&self.interface, &self.service],
                )?;
                Ok(Box::new(KernelContext::open(&self.kernel())?))
            }
            DIRECT => {
                self.check_foreign(&[numbers.busy_poll_us], &[&self.service])?;
                Ok(Box::new(tidelane_direct_nic::open(&self.nic()?)?))
            }
            SERVICE => {
                let foreign = [numbers.queue, numbers.flags, numbers.busy_poll_us];
                self.check_foreign(&foreign, &[&self.interface])?;
                Ok(Box::new(ServiceContext::open(&self.service())?))
            }
            _ => Err(Error::BACK_END),
        }
    }

    /// Returns an error if one of these options, which the back end does not have, is set. A number
    /// is set if it is not zero. A name is set if it is `Some`.
    fn check_foreign(&self, numbers: &[u32], names: &[&Option<String>]) -> Result<(), Error> {
        let is_set = numbers.iter().any(|number| *number != 0);
        match is_set || names.iter().any(|name| name.is_some()) {
            true => Err(Error::FOREIGN_OPTION),
            false => Ok(()),
        }
    }

    fn kernel(&self) -> KernelOptions {
        let default = KernelOptions::default();
        KernelOptions {
            buffers: or(self.numbers.buffers, default.buffers),
            buffer_len: or(self.numbers.buffer_len, default.buffer_len),
            send_queue_max: or_len(self.numbers.send_queue_max, default.send_queue_max),
            busy_poll_us: self.numbers.busy_poll_us,
            zero_copy: default.zero_copy,
        }
    }

    fn nic(&self) -> Result<NicOptions, Error> {
        let interface = self.interface.clone().ok_or(Error::NO_INTERFACE)?;
        let queue = match self.numbers.flags {
            0 if self.numbers.queue == 0 => None,
            STEERED => Some(self.numbers.queue),
            0 => return Err(Error::NOT_STEERED),
            _ => return Err(Error::FLAGS),
        };
        let default = NicOptions::new(interface);
        Ok(NicOptions {
            queue,
            buffers: or(self.numbers.buffers, default.buffers),
            send_queue_max: or_len(self.numbers.send_queue_max, default.send_queue_max),
            ..default
        })
    }

    fn service(&self) -> ServiceOptions {
        let default = ServiceOptions::default();
        ServiceOptions {
            buffers: or(self.numbers.buffers, default.buffers),
            buffer_len: or(self.numbers.buffer_len, default.buffer_len),
            send_queue_max: or_len(self.numbers.send_queue_max, default.send_queue_max),
            socket: match &self.service {
                Some(path) => path.into(),
                None => default.socket,
            },
            ..default
        }
    }
}

/// Returns `number`, or `default` if `number` is zero.
fn or(number: u32, default: u32) -> u32 {
    match number {
        0 => default,
        number => number,
    }
}

/// Returns `number` as a `usize`, or `default` if `number` is zero.
fn or_len(number: u32, default: usize) -> usize {
    match number {
        0 => default,
        number => number as usize,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn direct(numbers: Options) -> BackEndOptions {
        BackEndOptions {
            numbers: Options {
                back_end: DIRECT,
                ..numbers
            },
            interface: Some("no-such-if".to_owned()),
            service: None,
        }
    }

    #[test]
    fn a_queue_needs_the_flag() {
        let queue_of = |queue, flags| {
            let options = direct(Options {
                queue,
                flags,
                ..Options::default()
            });
            options.nic().map(|nic| nic.queue)
        };
        assert_eq!(queue_of(0, 0), Ok(None));
        assert_eq!(queue_of(0, STEERED), Ok(Some(0)));
        assert_eq!(queue_of(3, STEERED), Ok(Some(3)));
        assert_eq!(queue_of(3, 0), Err(Error::NOT_STEERED));
        assert_eq!(queue_of(3, 2), Err(Error::FLAGS));
    }

    #[test]
    fn zeros_stand_for_the_defaults() {
        let options = direct(Options::default());
        assert_eq!(options.nic(), Ok(NicOptions::new("no-such-if")));
        assert_eq!(options.kernel(), KernelOptions::default());
        assert_eq!(options.service(), ServiceOptions::default());
        let options = direct(Options {
            buffers: 100,
            buffer_len: 300,
            send_queue_max: 7,
            ..Options::default()
        });
        let (nic, kernel) = (options.nic().expect("possible"), options.kernel());
        let service = options.service();
        assert_eq!((nic.buffers, nic.send_queue_max), (100, 7));
        assert_eq!((kernel.buffers, kernel.buffer_len), (100, 300));
        assert_eq!((service.buffers, service.buffer_len), (100, 300));
        assert_eq!((kernel.send_queue_max, service.send_queue_max), (7, 7));
    }
}
