//! The interop tests (`tests/interop`) that the laboratory (`cargo xtask lab`) runs in emulated
//! machines, their results, and the printed table.

use std::{collections::BTreeMap, process::ExitCode, time::Duration};

use super::nics::Nic;

/// The only test that runs on an unsupported kernel. The test passes if the Tidelane service (the
/// process `tidelaned`) starts, or if the reason why the service does not start is reported.
pub const STARTS: &str = "kernels::starts_or_says_why";

/// The tests. Each entry has the name, the heading of the table's column, and true if `--small`
/// includes the test.
const TESTS: [(&str, &str, bool); 26] = [
    (STARTS, "start", true),
    ("commands::up_down_up", "up, down", true),
    ("servers::nginx_bodies_by_curl", "nginx", true),
    ("servers::redis_values", "redis", true),
    ("loss::one_percent_by_netem", "1% loss", true),
    ("jumbo::nginx_bodies", "jumbo", false),
    ("links::kinds_are_refused_with_the_reason", "kinds", false),
    ("links::tagged_frames_reach_no_connection", "tags", false),
    ("links::vlans_beside_the_service", "VLAN beside", false),
    ("links::a_vlan_is_served", "VLAN served", false),
    ("offloads::settings_are_as_before", "settings", false),
    ("offloads::uploads_with_all_offloads", "offloads", false),
    ("ipv6::nginx_on_both_versions", "IPv6", false),
    ("coexist::ping_under_load", "ICMP", false),
    ("fragments::a_router_cuts_segments", "fragments", false),
    ("deaths::killed_program_frees_all", "program dies", false),
    (
        "deaths::killed_service_resets_and_comes_back",
        "service dies",
        false,
    ),
    (
        "coexist::an_unaccelerated_server_on_another_port",
        "kernel beside",
        false,
    ),
    ("clients::curl_from_a_kernel_server", "client", false),
    ("cores::both_have_connections", "two cores", false),
    (
        "interfaces::a_service_starts_without_a_carrier",
        "interface",
        false,
    ),
    ("interfaces::down_and_up_again", "interface", false),
    ("interfaces::the_mtu_changes", "interface", false),
    ("interfaces::renamed", "interface", false),
    ("interfaces::gone", "interface", false),
    ("interfaces::the_driver_is_reset", "driver reset", false),
];

/// Environment variables that make the tests smaller, because an emulated machine is slow.
pub const SIZES: &str = "TIDELANE_KILLS=6 TIDELANE_LOSS_MIB=4 TIDELANE_BULK_MIB=8";

/// Returns the names of the tests to run. If `small` is true, selects only tests that `--small`
/// includes. If there are filters, selects only tests whose names contain one of the filters. Fails
/// if no test is selected.
pub fn chosen(small: bool, filters: &[String]) -> Result<Vec<&'static str>, String> {
    let wanted = |name: &str| filters.is_empty() || filters.iter().any(|f| name.contains(f));
    let chosen = TESTS
        .iter()
        .filter(|(name, _, is_small)| wanted(name) && (*is_small || !small));
    let chosen: Vec<_> = chosen.map(|(name, ..)| *name).collect();
    if chosen.is_empty() {
        return Err("no such test".to_owned());
    }
    Ok(chosen)
}

/// The result of a test.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The test passed. The text is a remark of the test, and may be empty.
    Passed(String),
    /// The test did not run, for this reason.
    Skipped(String),
    /// The test failed. The text is the reason, or the output of the test.
    Failed(String),
}

/// The result of one test on one kernel (or pair of kernels) and NIC. If several tests share a
/// column of the printed table, one field of the table summarizes several values of this type.
#[derive(Clone, Debug)]
pub struct Cell {
    /// Result of the test.
    pub verdict: Verdict,
    /// Duration of the test in seconds.
    pub seconds: f32,
}

impl Cell {
    /// Returns a cell.
    pub fn new(verdict: Verdict, seconds: f32) -> Self {
        Self { verdict, seconds }
    }

    /// Prints the result in the format of libtest.
    pub fn print(&self, kernel: &str, nic: &str, test: &str) {
        let name = format!("{kernel}/{nic}/{test}");
        match &self.verdict {
            Verdict::Passed(note) => {
                let comma = if note.is_empty() { "" } else { ", " };
                println!("test {name} ... ok ({:.1} s){comma}{note}", self.seconds);
            }
            Verdict::Skipped(reason) => println!("test {name} ... ignored, {reason}"),
            Verdict::Failed(text) => println!("test {name} ... FAILED\n---- {name} ----\n{text}"),
        }
    }
}

/// Parser for the output of a test program.
#[derive(Debug, Default)]
pub struct Reader {
    /// The failed test to which the next lines of output belong: name, seconds, and output so far.
    failed: Option<(String, f32, String)>,
}

impl Reader {
    /// Parses one line. If the line is the end of a result, returns the test's name and its result.
    pub fn line(&mut self, line: &str) -> Option<(String, Cell)> {
        if let Some((name, seconds, text)) = &mut self.failed {
            if !line.starts_with(OUTPUT_END) {
                *text += line;
                *text += "\n";
                return None;
            }
            let cell = Cell::new(Verdict::Failed(text.trim_end().to_owned()), *seconds);
            let name = std::mem::take(name);
            self.failed = None;
            return Some((name, cell));
        }
        let line = line.strip_prefix("test ")?;
        // The test program writes the start of the line before the test, and the result after it.
        if let Some(name) = line.strip_suffix(" ...") {
            let verdict = Verdict::Failed("the machine ended during the test".to_owned());
            return Some((name.to_owned(), Cell::new(verdict, 0.0)));
        }
        let (name, result) = line.split_once(" ... ")?;
        let seconds = seconds_of(result);
        if result.starts_with("FAILED") {
            self.failed = Some((name.to_owned(), seconds, String::new()));
            return None;
        }
        let verdict = match result.strip_prefix("ignored, ") {
            Some(reason) => Verdict::Skipped(reason.to_owned()),
            None => Verdict::Passed(result.split_once("), ").map_or("", |end| end.1).to_owned()),
        };
        Some((name.to_owned(), Cell::new(verdict, seconds)))
    }
}

/// Prefix of the line that follows the output of a failed test.
const OUTPUT_END: &str = "---- end ";

/// Returns the seconds in a result such as `ok (1.5 s)`, or 0 if the result contains no seconds.
fn seconds_of(result: &str) -> f32 {
    let number = result
        .split_once('(')
        .and_then(|(_, rest)| rest.split_once(' '));
    number
        .and_then(|(number, _)| number.parse().ok())
        .unwrap_or(0.0)
}

/// Results by the index of the kernel, the index of the NIC, and the name of the test.
pub type Results = BTreeMap<(usize, usize, &'static str), Cell>;

/// Prints the table, with one line for each combination of a kernel and a NIC.
pub fn print_table(kernels: &[&str], nics: &[Nic], tests: &[&'static str], results: &Results) {
    let columns = columns(tests);
    print!("\n{:<9}{:<16}", "kernel", "NIC");
    columns
        .iter()
        .for_each(|(heading, _)| print!("{heading:<18}"));
    println!();
    for (index, kernel) in kernels.iter().enumerate() {
        for (number, nic) in nics.iter().enumerate() {
            print!("{kernel:<9}{:<16}", nic.name);
            for (_, tests) in &columns {
                let cells = tests
                    .iter()
                    .filter_map(|test| results.get(&(index, number, *test)));
                print!("{:<17} ", summary(&cells.collect::<Vec<_>>()));
            }
            println!();
        }
    }
}

/// Returns the columns of the table for `tests`: each heading with its tests. Adjacent tests with
/// the same heading share a column.
fn columns(tests: &[&'static str]) -> Vec<(&'static str, Vec<&'static str>)> {
    let mut columns: Vec<(&str, Vec<&str>)> = Vec::new();
    for (name, heading, _) in TESTS.iter().filter(|(name, ..)| tests.contains(name)) {
        match columns.last_mut().filter(|(last, _)| last == heading) {
            Some((_, names)) => names.push(name),
            None => columns.push((heading, vec![name])),
        }
    }
    columns
}

/// Returns the text of one field of the table. `cells` has the results of the column's tests on one
/// kernel and NIC.
fn summary(cells: &[&Cell]) -> String {
    let is_skip = |cell: &&&Cell| matches!(cell.verdict, Verdict::Skipped(_));
    let is_failure = |cell: &&Cell| matches!(cell.verdict, Verdict::Failed(_));
    let skips = cells.iter().filter(is_skip).count();
    if cells.is_empty() {
        return "-".to_owned();
    }
    if cells.iter().any(is_failure) {
        return "FAILED".to_owned();
    }
    if skips == cells.len() {
        return "skipped".to_owned();
    }
    match cells {
        [
            Cell {
                verdict: Verdict::Passed(note),
                ..
            },
        ] if !note.is_empty() => note.clone(),
        _ => {
            let seconds: f32 = cells.iter().map(|cell| cell.seconds).sum();
            let skipped = match skips {
                0 => String::new(),
                _ => format!(", {skips} skip"),
            };
            format!("ok {seconds:.0} s{skipped}")
        }
    }
}

/// Prints a summary line in the format of libtest for these results. Returns the exit code.
pub fn print_counts<'a>(cells: impl Iterator<Item = &'a Cell>, took: Duration) -> ExitCode {
    let (mut passed, mut failed, mut skipped) = (0, 0, 0);
    for cell in cells {
        match cell.verdict {
            Verdict::Passed(_) => passed += 1,
            Verdict::Skipped(_) => skipped += 1,
            Verdict::Failed(_) => failed += 1,
        }
    }
    print_result((passed, failed, skipped), took)
}

/// Prints a summary line in the format of libtest with these counts. Returns the exit code.
pub fn print_result((passed, failed, ignored): (usize, usize, usize), took: Duration) -> ExitCode {
    let word = if failed == 0 { "ok" } else { "FAILED" };
    println!(
        "\ntest result: {word}. {passed} passed; {failed} failed; {ignored} ignored; 0 measured; 0 \
         filtered out; finished in {:.2}s",
        took.as_secs_f32()
    );
    ExitCode::from(u8::from(failed > 0))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_says_how_its_tests_ended() {
        let tests = [STARTS, "interfaces::renamed", "interfaces::gone"];
        let found = columns(&tests);
        assert_eq!(found[0], ("start", vec![STARTS]));
        assert_eq!(found[1], ("interface", tests[1..].to_vec()));
        let passed = |note: &str| Cell::new(Verdict::Passed(note.to_owned()), 2.0);
        let skipped = Cell::new(Verdict::Skipped("no".to_owned()), 0.0);
        let failed = Cell::new(Verdict::Failed("no".to_owned()), 1.0);
        assert_eq!(summary(&[]), "-");
        assert_eq!(summary(&[&skipped]), "skipped");
        assert_eq!(summary(&[&passed("native, copy")]), "native, copy");
        assert_eq!(summary(&[&passed(""), &passed("a note")]), "ok 4 s");
        assert_eq!(summary(&[&passed(""), &skipped]), "ok 2 s, 1 skip");
        assert_eq!(summary(&[&passed(""), &failed, &skipped]), "FAILED");
    }

    #[test]
    fn lines_of_a_test_program_become_cells() {
        let mut reader = Reader::default();
        let lines = [
            "running 3 tests",
            "test a::b ... ok (1.5 s), native",
            "test a::c ... ignored, no netem here",
            "test a::d ... FAILED (3.0 s, exit status: 1)",
            "---- a::d ----",
            "test of nothing ... ok",
            "---- end a::d ----",
            "test result: FAILED. 1 passed",
            "test a::e ...",
        ];
        let cells: Vec<_> = lines.iter().filter_map(|line| reader.line(line)).collect();
        let verdict = |at: usize| (cells[at].0.as_str(), &cells[at].1.verdict);
        assert_eq!(cells.len(), 4);
        assert!(matches!(verdict(3), ("a::e", Verdict::Failed(_))));
        assert_eq!(verdict(0), ("a::b", &Verdict::Passed("native".to_owned())));
        assert_eq!(cells[0].1.seconds, 1.5);
        let skipped = Verdict::Skipped("no netem here".to_owned());
        assert_eq!(verdict(1), ("a::c", &skipped));
        let failed = Verdict::Failed("---- a::d ----\ntest of nothing ... ok".to_owned());
        assert_eq!(verdict(2), ("a::d", &failed));
    }
}
