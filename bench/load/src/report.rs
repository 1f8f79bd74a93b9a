//! The result of a client's run, printed as one line of JSON.

use std::time::Duration;

use hdrhistogram::Histogram;
use serde_json::{Value, json};

/// Largest latency that the histogram records. Larger latencies are recorded as this value.
const LATENCY_MAX: Duration = Duration::from_secs(60);
/// Decimal digits of precision of the histogram.
const DIGITS: u8 = 3;

/// Counts of a client's run. The counts leave out the warm-up, except where a field says otherwise.
#[derive(Debug)]
pub struct Report {
    /// Latency of each exchange in nanoseconds.
    latency: Histogram<u64>,
    /// Number of completed exchanges.
    pub requests: u64,
    /// Number of established connections. The key-value client counts all its connections, which it
    /// establishes before the warm-up.
    pub connections: u64,
    /// Number of failed connections, including the warm-up.
    pub errors: u64,
    /// The reason of the first failure, including the warm-up.
    pub first_error: Option<String>,
}

impl Default for Report {
    fn default() -> Self {
        let max = LATENCY_MAX.as_nanos() as u64;
        let latency = Histogram::new_with_bounds(1, max, DIGITS).expect("valid bounds");
        Self {
            latency,
            requests: 0,
            connections: 0,
            errors: 0,
            first_error: None,
        }
    }
}

impl Report {
    /// Counts one completed exchange.
    pub fn record(&mut self, latency: Duration) {
        self.requests += 1;
        self.latency.saturating_record(latency.as_nanos() as u64);
    }

    /// Counts one failed connection. `what` is the reason.
    pub fn fail(&mut self, what: impl Into<String>) {
        self.errors += 1;
        if self.first_error.is_none() {
            self.first_error = Some(what.into());
        }
    }

    /// Returns the line to print. `seconds` is the duration after the warm-up, and `cpu` is the CPU
    /// time of the process in this duration.
    pub fn to_json(&self, seconds: f64, cpu: Duration) -> Value {
        let micros = |quantile: f64| self.latency.value_at_quantile(quantile) as f64 / 1000.0;
        json!({
            "requests": self.requests,
            "seconds": seconds,
            "rps": if seconds > 0.0 { self.requests as f64 / seconds } else { 0.0 },
            "latency_us": {
                "mean": self.latency.mean() / 1000.0,
                "p50": micros(0.50),
                "p99": micros(0.99),
                "p999": micros(0.999),
                "max": self.latency.max() as f64 / 1000.0,
            },
            "connections": self.connections,
            "errors": self.errors,
            "first_error": self.first_error,
            "cpu_seconds": cpu.as_secs_f64(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quantiles_and_counts_come_out() {
        let mut report = Report::default();
        for micros in 1..=100 {
            report.record(Duration::from_micros(micros));
        }
        report.fail("first");
        report.fail("second");
        let line = report.to_json(2.0, Duration::from_millis(500));
        assert_eq!(line["requests"], 100);
        assert_eq!(line["rps"], 50.0);
        assert_eq!(line["errors"], 2);
        assert_eq!(line["first_error"], "first");
        let p50 = line["latency_us"]["p50"].as_f64().expect("a number");
        assert!((49.9..=50.2).contains(&p50), "median {p50}");
        let p99 = line["latency_us"]["p99"].as_f64().expect("a number");
        assert!((98.9..=99.3).contains(&p99), "99th {p99}");
    }
}
