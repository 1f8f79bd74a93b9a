//! The report of wrk, the HTTP load client.

/// The numbers of a run of wrk. An optional field is `None` if wrk has not printed the number. wrk
/// prints the percentiles of the latency only if it runs with `--latency`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WrkReport {
    /// Requests per second.
    pub requests_per_second: f64,
    /// Number of requests.
    pub requests: Option<f64>,
    /// Mean latency in µs.
    pub mean_us: Option<f64>,
    /// Median of the latency in µs.
    pub p50_us: Option<f64>,
    /// 99th percentile of the latency in µs.
    pub p99_us: Option<f64>,
}

impl WrkReport {
    /// Parses the output of wrk. If a line reports failed requests, the error is this line. If the
    /// output has no rate, the error says so.
    pub fn parse(output: &str) -> Result<Self, String> {
        let lines = || output.lines().map(str::trim);
        let is_failure = |line: &&str| line.contains("Socket errors") || line.contains("Non-2xx");
        if let Some(failure) = lines().find(is_failure) {
            return Err(failure.to_owned());
        }
        let field = |label: &str| {
            let line = lines().find_map(|line| line.strip_prefix(label))?;
            line.split_whitespace().next()
        };
        let time = |label: &str| field(label).and_then(microseconds);
        let count = lines().find(|line| line.contains(" requests in "));
        let count = count.and_then(|line| line.split_whitespace().next());
        let rate = field("Requests/sec:").and_then(|rate| rate.parse().ok());
        Ok(Self {
            requests_per_second: rate.ok_or("wrk printed no rate")?,
            requests: count.and_then(|count| count.parse().ok()),
            // The two spaces exclude the line "Latency Distribution", which has no time.
            mean_us: time("Latency  "),
            p50_us: time("50%"),
            p99_us: time("99%"),
        })
    }
}

/// Parses a time with a unit of wrk: us, ms, s or m (minutes). Returns the time in µs.
fn microseconds(text: &str) -> Option<f64> {
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6), ("m", 60e6)];
    let (number, unit) = units
        .iter()
        .find_map(|(unit, factor)| Some((text.strip_suffix(unit)?, factor)))?;
    Some(number.parse::<f64>().ok()? * unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
Running 2s test @ http://127.0.0.1:7788/64
  1 threads and 64 connections
  Thread Stats   Avg      Stdev     Max   +/- Stdev
    Latency     1.45ms    1.72ms  14.76ms   86.58%
    Req/Sec    45.62k    14.60k   87.66k    75.00%
  Latency Distribution
     50%  563.00us
     75%    2.08ms
     90%    3.65ms
     99%    8.17ms
  91451 requests in 2.02s, 8.98MB read
Requests/sec:  45313.31
Transfer/sec:      4.45MB
";

    #[test]
    fn the_numbers_of_a_report_are_found() {
        let report = WrkReport::parse(OUTPUT).expect("a report");
        assert!((report.requests_per_second - 45313.31).abs() < 0.001);
        let is_near = |found: Option<f64>, us: f64| (found.expect("a time") - us).abs() < 0.001;
        assert!(is_near(report.mean_us, 1450.0));
        assert!(is_near(report.p50_us, 563.0));
        assert!(is_near(report.p99_us, 8170.0));
        assert_eq!(report.requests, Some(91451.0));
        assert_eq!(microseconds("563.00us"), Some(563.0));
        assert_eq!(microseconds("1.50s"), Some(1_500_000.0));
        assert_eq!(microseconds("x"), None);
        assert_eq!(microseconds("fast"), None);
    }

    #[test]
    fn numbers_that_wrk_has_not_printed_are_missing() {
        let text = "Running 2s test @ http://10.77.0.1/64\n  Latency Distribution\n     50%  \
                    412.00us\n     75%    1.00ms\n     99%    1.23ms\nRequests/sec:  12345.67\n";
        let report = WrkReport::parse(text).expect("a report");
        assert_eq!(report.requests_per_second, 12345.67);
        assert_eq!((report.p50_us, report.p99_us), (Some(412.0), Some(1230.0)));
        assert_eq!((report.mean_us, report.requests), (None, None));
        assert!(WrkReport::parse("  Latency Distribution\n").is_err());
    }

    #[test]
    fn failed_requests_are_an_error() {
        let failed = format!("{OUTPUT}  Socket errors: connect 0, read 3, write 0, timeout 0\n");
        let reason = WrkReport::parse(&failed).expect_err("a failure");
        assert!(reason.starts_with("Socket errors"), "{reason}");
    }
}
