//! Hostile packets attack Tidelane's TCP engine, and hostile programs attack the service
//! (`tidelaned`). All attacks are simulated.
//!
//! The environment variable `TIDELANE_HOSTILE_PACKETS` sets the number of forged packets. The tests
//! that run several seeds begin with the seed in `TIDELANE_HOSTILE_SEED`.

use tidelane_hostile::attack::{Campaign, Counts};
use tidelane_time::Duration;
use tidelane_world::{Behaviour, Scenario, Theme, run};

/// Number of campaigns. A campaign is one simulated attack on an engine, and forges an equal part
/// of the packets. The seed of a campaign decides the packets, and the limits and options of the
/// engines.
const CAMPAIGNS: u64 = 10;

/// Returns the number in the environment variable `name`, or `default` if the variable is not
/// set.
fn env_number(name: &str, default: u64) -> u64 {
    let value = std::env::var(name).ok();
    value.map_or(default, |text| text.parse().expect("a number"))
}

#[test]
fn forged_packets_neither_break_nor_leak_nor_disturb() {
    let packets = env_number("TIDELANE_HOSTILE_PACKETS", 1_000_000);
    let first = env_number("TIDELANE_HOSTILE_SEED", 0);
    let mut sum = Counts::default();
    for seed in first..first + CAMPAIGNS {
        println!("campaign {seed}");
        let counts = Campaign::new(seed).run(packets / CAMPAIGNS);
        sum.forged += counts.forged;
        sum.unparsable += counts.unparsable;
        sum.icmp += counts.icmp;
        sum.established += counts.established;
        sum.verified_flows += counts.verified_flows;
        sum.verified_bytes += counts.verified_bytes;
    }
    println!("{sum:?}");
    // With fewer established connections, most forged segments may reach no connection.
    assert!(sum.established > packets / 5_000, "{sum:?}");
    assert!(sum.verified_flows > packets / 50_000, "{sum:?}");
}

#[test]
fn equal_campaigns_give_equal_counts() {
    assert_eq!(Campaign::new(3).run(20_000), Campaign::new(3).run(20_000));
}

/// In a simulator, hostile programs write random values to the memory that they share with the
/// service. The mean time between two bursts of writes is two microseconds of virtual time.
/// Meanwhile the other programs exchange bytes, which the simulator checks.
#[test]
fn a_program_that_scribbles_over_its_region_disturbs_nobody() {
    let (mut fuzz_bursts, mut complete) = (0, 0);
    let first = env_number("TIDELANE_HOSTILE_SEED", 0);
    for seed in first..first + 12 {
        let mut scenario = Scenario::with_theme(seed, Theme::Misbehaviour);
        for program in &mut scenario.programs {
            if program.behaviour != Behaviour::Good {
                program.behaviour = Behaviour::Bad {
                    every: Duration::from_micros(2),
                };
            }
        }
        match run(scenario) {
            Ok(report) => {
                fuzz_bursts += report.fuzz_bursts;
                complete += report.complete;
            }
            Err(violation) => panic!("seed {seed}: {violation}"),
        }
    }
    println!("{fuzz_bursts} bursts of writes, {complete} connections complete");
    assert!(fuzz_bursts > 100_000 && complete > 20);
}
