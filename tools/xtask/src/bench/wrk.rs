//! The report of wrk, the HTTP load client.

/// The numbers of a run of `wrk --latency`.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WrkReport {
    /// Requests per second.
    pub requests_per_second: f64,
    /// Mean latency in µs.
    pub mean_us: f64,
    /// 99th percentile of the latency in µs.
    pub p99_us: f64,
}

impl WrkReport {
    /// Parses the output. The error is the reason: a request failed, or a number is missing.
    pub fn parse(output: &str) -> Result<Self, String> {
        if output.contains("Socket errors") || output.contains("Non-2xx") {
            return Err(format!("a request failed: {output}"));
        }
        let field = |start: &str| {
            let line = output
                .lines()
                .find_map(|line| line.trim().strip_prefix(start))?;
            line.split_whitespace().next()
        };
        let missing = |name: &str| format!("no {name} in {output}");
        let time = |start: &str| {
            field(start)
                .and_then(microseconds)
                .ok_or_else(|| missing(start))
        };
        let rate = field("Requests/sec:").and_then(|rate| rate.parse().ok());
        Ok(Self {
            requests_per_second: rate.ok_or_else(|| missing("rate"))?,
            mean_us: time("Latency  ")?,
            p99_us: time("99%")?,
        })
    }
}

/// Parses a time with a unit of wrk: us, ms, s or m. Returns µs.
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
        assert!((report.mean_us - 1450.0).abs() < 0.001);
        assert!((report.p99_us - 8170.0).abs() < 0.001);
        assert_eq!(microseconds("563.00us"), Some(563.0));
        assert_eq!(microseconds("1.50s"), Some(1_500_000.0));
        assert_eq!(microseconds("x"), None);
    }

    #[test]
    fn failed_requests_are_an_error() {
        let failed = format!("{OUTPUT}  Socket errors: connect 0, read 3, write 0, timeout 0\n");
        assert!(WrkReport::parse(&failed).is_err());
        assert!(WrkReport::parse("Requests/sec:  1.0\n").is_err());
    }
}
