//! Runs each part of a suite on the kernel and on Tidelane, and compares the results case by case.
//! A suite is a test suite of another project. A part is a group of cases of the suite that one
//! command runs.

use std::collections::{BTreeMap, BTreeSet};

use tidelane_tests::Stop;

use crate::{
    catalog::Suite,
    output_format::{Cases, Verdict},
    pair::Pair,
    prepare::Place,
    results::Row,
    testbed::{RunResult, Stack, Testbed},
};

/// Largest number of repetitions of a case that passed on only one stack.
const REPEATS: usize = 3;
/// Largest number of cases that are repeated singly if the repetition command accepts only one
/// case. For more cases, the whole part is repeated.
const SINGLE_MAX: usize = 12;

/// Runs the parts on the kernel alone, and prints the cases that fail or have no result.
pub fn try_kernel(suite: &Suite, place: &Place, parts: &[String]) -> Result<(), Stop> {
    let testbed = Testbed::new(suite, place, Stack::Kernel)?;
    for part in parts {
        let result = testbed.run(&suite.command, part)?;
        print(&testbed, part, &result);
        for (case, verdict) in &result.cases {
            if *verdict > Verdict::Passed {
                println!("    {verdict:?}: {case}");
            }
        }
    }
    Ok(())
}

/// Runs the parts on both stacks, and adds the cases to the row.
pub fn run(suite: &Suite, place: &Place, parts: &[String], row: &mut Row) -> Result<(), Stop> {
    let testbeds = [Stack::Kernel, Stack::Tidelane(row.run_options.clone())];
    let [kernel, ours] = testbeds.map(|stack| Testbed::new(suite, place, stack));
    let testbeds = [kernel?, ours?];
    for part in parts {
        let mut seen = Vec::new();
        for (index, testbed) in testbeds.iter().enumerate() {
            let before = testbed.opens()?;
            let result = testbed.run(&suite.command, part)?;
            row.connections[index] += testbed.opens()? - before;
            print(testbed, part, &result);
            seen.push(result.cases);
        }
        if seen.iter().all(Cases::is_empty) {
            // Report a part whose output has no cases on either stack.
            seen[0].insert(format!("{part}: no cases"), Verdict::Lost);
        }
        let pairs = pair_verdicts(&testbeds, suite, part, &seen)?;
        row.add(suite, &pairs);
    }
    Ok(())
}

/// Pairs the verdicts of the two stacks. If a case passed on only one stack, repeats the case on
/// the other stack. `seen` has two elements: the cases of the run on the kernel, and the cases of
/// the run on Tidelane.
fn pair_verdicts(
    testbeds: &[Testbed<'_>; 2],
    suite: &Suite,
    part: &str,
    seen: &[Cases],
) -> Result<BTreeMap<String, Pair>, Stop> {
    let names: BTreeSet<&String> = seen.iter().flat_map(Cases::keys).collect();
    let verdict = |index: usize, name: &String| {
        let known = seen[index].get(name);
        known.copied().unwrap_or(Verdict::Lost)
    };
    let mut pairs = BTreeMap::new();
    for name in &names {
        let pair = Pair {
            verdicts: [verdict(0, name), verdict(1, name)],
            repeats: [0; 2],
        };
        pairs.insert((*name).clone(), pair);
    }
    for (index, testbed) in testbeds.iter().enumerate() {
        let passed = |index| move |pair: &Pair| pair.verdicts[index] == Verdict::Passed;
        let differs = |pair: &Pair| !passed(index)(pair) && passed(1 - index)(pair);
        let wanted = pairs.iter().filter(|(_, pair)| differs(pair));
        let wanted: BTreeSet<String> = wanted.map(|(name, _)| name.clone()).collect();
        for (name, round) in repeat_cases(testbed, suite, part, wanted)? {
            if let Some(pair) = pairs.get_mut(&name) {
                pair.verdicts[index] = Verdict::Passed;
                pair.repeats[index] = round;
            }
        }
    }
    Ok(pairs)
}

/// Repeats the cases `wanted` at most [`REPEATS`] times. Returns the cases that passed, each with
/// the number of the repetition in which it passed.
fn repeat_cases(
    testbed: &Testbed<'_>,
    suite: &Suite,
    part: &str,
    mut wanted: BTreeSet<String>,
) -> Result<BTreeMap<String, usize>, Stop> {
    let mut passed = BTreeMap::new();
    for round in 1..=REPEATS {
        if wanted.is_empty() {
            break;
        }
        for command in commands(suite, part, &wanted) {
            for (name, verdict) in testbed.run(&command, part)?.cases {
                if verdict == Verdict::Passed && wanted.remove(&name) {
                    passed.insert(name, round);
                }
            }
        }
        println!(
            "    {} again on {}: {} have passed, {} have not",
            part,
            testbed.name(),
            passed.len(),
            wanted.len()
        );
    }
    Ok(passed)
}

/// Returns the commands that repeat the cases `wanted`. If the suite cannot repeat single cases,
/// returns the command of the whole part. Also returns this command if each case needs a command of
/// its own and there are more than [`SINGLE_MAX`] cases.
fn commands(suite: &Suite, part: &str, wanted: &BTreeSet<String>) -> Vec<String> {
    let Some(repeat) = &suite.repeat else {
        return vec![suite.command.clone()];
    };
    if repeat.single && wanted.len() > SINGLE_MAX {
        return vec![suite.command.clone()];
    }
    let head = format!("{part}: ");
    let named = wanted.iter().map(|case| {
        let case = case.strip_prefix(&head).unwrap_or(case);
        repeat.case.replace("{case}", case)
    });
    let named: Vec<String> = named.collect();
    let groups: Vec<String> = if repeat.single {
        named
    } else {
        vec![named.join(" ")]
    };
    let command = |cases: String| repeat.command.replace("{cases}", &cases);
    groups.into_iter().map(command).collect()
}

/// Prints the counts of a run.
fn print(testbed: &Testbed<'_>, part: &str, result: &RunResult) {
    let count = |verdict| result.cases.values().filter(|v| **v == verdict).count();
    println!(
        "  {:<26} {:<8} {:>5} passed {:>3} failed {:>3} skipped {:>3} lost {:>6.1} s{}",
        part,
        testbed.name(),
        count(Verdict::Passed),
        count(Verdict::Failed),
        count(Verdict::Skipped),
        count(Verdict::Lost),
        result.seconds,
        if result.timed_out {
            ", its time was over"
        } else {
            ""
        }
    );
}
