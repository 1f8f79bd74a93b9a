//! Measures one program. The program's row in the table of results consists of cells and of the
//! results of a load.
//!
//! Each cell has the result of one check: a client runs, and its output is compared with a file.
//! The checks differ in the server's stack (the kernel or Tidelane), in the client's stack, and in
//! the disturbance. The disturbance is packet loss, a service that is killed during the check, or
//! none. The load runs with the server on the kernel and with the server on Tidelane in turn.

use tidelane_tests::{Service, Side, Stop};

use crate::{
    catalog::{Entry, Load},
    check::{self, CheckSetup, Checked},
    load::{self, Sample},
    outage,
    results::{Cell, Condition, LoadRow, Mark, Row, Sides},
    stack_detector::CarriedBy,
    testbed::{Kind, Testbed},
};

/// Measures all cells and the load, and adds them to the row. A failed check becomes a failed cell.
/// If the server does not start even on the kernel, the row gets only the reason.
pub fn run(entry: &Entry, rounds: usize, row: &mut Row) {
    let kernel = match Testbed::new(entry, Kind::PLAIN) {
        Ok(testbed) => testbed,
        Err(stop) => {
            row.skipped = Some(format!("it does not start on the kernel: {}", words(stop)));
            return;
        }
    };
    plain(&kernel, None, row);
    match Testbed::new(entry, Kind::ACCELERATED) {
        Ok(ours) => {
            plain(&ours, None, row);
            row.load = Some(loads(&kernel, &ours, &entry.load(), rounds));
            measure_client_on_tidelane(kernel, row);
            measure_server_on_tidelane(ours, row);
        }
        Err(stop) => {
            let sides = [Sides::TidelaneServer, Sides::Both];
            fail_all(row, &[Condition::Plain, Condition::Outage], &sides, &stop);
            measure_client_on_tidelane(kernel, row);
        }
    }
    for accelerated in [false, true] {
        lossy(entry, accelerated, row);
    }
}

/// Runs only one check and one load, both on the kernel. Adds the cell to the row, and prints the
/// result of the load.
pub fn try_kernel(entry: &Entry, row: &mut Row) {
    let testbed = match Testbed::new(entry, Kind::PLAIN) {
        Ok(testbed) => testbed,
        Err(stop) => {
            row.skipped = Some(words(stop));
            return;
        }
    };
    plain(&testbed, None, row);
    match load::run(&testbed, &entry.load()) {
        Ok((sample, _)) => println!("  {sample:?}"),
        Err(stop) => println!("  the load failed: {}", words(stop)),
    }
    testbed.end();
}

/// Runs the undisturbed check and the check with a killed service, both with only the client on
/// Tidelane, and adds their cells.
fn measure_client_on_tidelane(mut testbed: Testbed<'_>, row: &mut Row) {
    match testbed.wire.service_with(Side::Client, &[]) {
        Ok(service) => {
            plain(&testbed, Some(&service), row);
            let result = outage::of_clients(&mut testbed, service);
            row.add(
                Condition::Outage,
                Sides::TidelaneClient,
                cell(&testbed, result),
            );
        }
        Err(stop) => {
            let conditions = [Condition::Plain, Condition::Outage];
            fail_all(row, &conditions, &[Sides::TidelaneClient], &stop);
        }
    }
    testbed.end();
}

/// Runs three checks with the server on Tidelane, and adds their cells. The first check is
/// undisturbed, with the client on Tidelane. In the other two checks, the service is killed: the
/// client of the second check is on the kernel, and the client of the third check is on Tidelane.
/// If the second check fails, the third check uses a new testbed.
fn measure_server_on_tidelane(mut testbed: Testbed<'_>, row: &mut Row) {
    let entry = testbed.entry;
    let mut client = testbed.wire.service_with(Side::Client, &[]);
    match &client {
        Ok(service) => plain(&testbed, Some(service), row),
        Err(stop) => fail_all(row, &[Condition::Plain], &[Sides::Both], stop),
    }
    let result = outage::of_server(&mut testbed);
    let unharmed = result.is_ok();
    row.add(
        Condition::Outage,
        Sides::TidelaneServer,
        cell(&testbed, result),
    );
    if !unharmed {
        drop(client);
        testbed.end();
        testbed = match Testbed::new(entry, Kind::ACCELERATED) {
            Ok(fresh) => fresh,
            Err(stop) => return fail_all(row, &[Condition::Outage], &[Sides::Both], &stop),
        };
        client = testbed.wire.service_with(Side::Client, &[]);
    }
    let result = client.and_then(|service| outage::of_clients(&mut testbed, service));
    row.add(Condition::Outage, Sides::Both, cell(&testbed, result));
    testbed.end();
}

/// Runs an undisturbed check, and adds its cell. `client` is the service that the client runs on.
/// `client` is `None` if the client is on the kernel.
fn plain(testbed: &Testbed<'_>, client: Option<&Service>, row: &mut Row) {
    let sides = Sides::of(testbed.service.is_some(), client.is_some());
    let result = check::run(
        testbed,
        CheckSetup {
            client,
            lossy: false,
        },
    );
    row.add(Condition::Plain, sides, cell(testbed, result));
}

/// Runs the checks with packet loss, with the client on the kernel and on Tidelane, and adds their
/// cells. The server is on Tidelane if `accelerated` is true, and otherwise on the kernel.
fn lossy(entry: &Entry, accelerated: bool, row: &mut Row) {
    let sides = [Sides::of(accelerated, false), Sides::of(accelerated, true)];
    let testbed = match Testbed::new(
        entry,
        Kind {
            accelerated,
            ..Kind::LOSSY
        },
    ) {
        Ok(testbed) => testbed,
        Err(stop) => return fail_all(row, &[Condition::Loss], &sides, &stop),
    };
    let result = check::run(
        &testbed,
        CheckSetup {
            client: None,
            lossy: true,
        },
    );
    row.add(Condition::Loss, sides[0], cell(&testbed, result));
    match testbed.wire.service_with(Side::Client, &[]) {
        Ok(service) => {
            let result = check::run(
                &testbed,
                CheckSetup {
                    client: Some(&service),
                    lossy: true,
                },
            );
            row.add(Condition::Loss, sides[1], cell(&testbed, result));
        }
        Err(stop) => fail_all(row, &[Condition::Loss], &sides[1..], &stop),
    }
    testbed.end();
}

/// Runs the load on the kernel and on Tidelane in each round. The order alternates, so that a drift
/// of the machine's speed affects both stacks equally. If a run fails, returns a row that has only
/// the reason.
fn loads(kernel: &Testbed<'_>, ours: &Testbed<'_>, load: &Load, rounds: usize) -> LoadRow {
    let mut row = LoadRow::new(&load.request);
    let mut samples: [Vec<Sample>; 2] = [Vec::new(), Vec::new()];
    for round in 0..rounds {
        // Index 0 stands for the kernel, index 1 for Tidelane.
        let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
        for side in order {
            let testbed = if side == 0 { kernel } else { ours };
            match load::run(testbed, load) {
                Ok((sample, carried)) => {
                    samples[side].push(sample);
                    row.accelerated &= side == 0 || carried == CarriedBy::Accelerated;
                }
                Err(stop) => {
                    let who = ["on the kernel", "on Tidelane"][side];
                    row.failed = Some(format!("{who}: {}", words(stop)));
                    return row;
                }
            }
        }
    }
    row.take(&samples[0], &samples[1]);
    row
}

/// Adds failed cells for all combinations of `conditions` and `sides`.
fn fail_all(row: &mut Row, conditions: &[Condition], sides: &[Sides], stop: &Stop) {
    for condition in conditions {
        for sides in sides {
            let (Stop::Skip(note) | Stop::Fail(note)) = stop;
            let cell = Cell {
                mark: Mark::Failed,
                note: tidelane_programs::last_lines(note),
            };
            row.add(*condition, *sides, cell);
        }
    }
}

/// Returns the cell for the result of a check.
fn cell(testbed: &Testbed<'_>, result: Result<Checked, Stop>) -> Cell {
    match result {
        Ok(Checked {
            carried: CarriedBy::Accelerated,
            ..
        }) => Cell::passed(),
        Ok(Checked {
            carried:
                CarriedBy::Kernel {
                    connections,
                    kernels,
                },
            message,
        }) => {
            let reason = message
                .or_else(|| testbed.reason())
                .or_else(|| testbed.reason_of_sockets());
            let count = format!("{kernels} of {connections} connections were the kernel's");
            let note = reason.map_or(count.clone(), |reason| format!("{count}: {reason}"));
            Cell {
                mark: Mark::Kernel,
                note,
            }
        }
        Err(stop) => {
            let mut note = words(stop);
            if !testbed.server.borrow_mut().alive() {
                note += &format!(
                    "; the server ended: {}",
                    tidelane_programs::last_lines(&testbed.server_words())
                );
            }
            Cell {
                mark: Mark::Failed,
                note,
            }
        }
    }
}

/// Returns the last lines of the text of `stop`, on one line.
fn words(stop: Stop) -> String {
    let (Stop::Skip(text) | Stop::Fail(text)) = stop;
    tidelane_programs::last_lines(&text)
}
