//! Runs the load of a program, and parses the output of the load client.

use std::time::Duration;

use serde_json::Value;
use tidelane_programs::last_lines;
use tidelane_tests::{Side, Stop, wrk::WrkReport};

use crate::{
    catalog::{Load, OutputFormat},
    stack_detector::{CarriedBy, StackDetector},
    testbed::Testbed,
};

/// Time limit of a load. A load client normally ends by itself before this limit.
const LOAD_MAX: Duration = Duration::from_secs(60);

/// The measured values of one run of a load.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Requests per second.
    pub rate: f64,
    /// 99th percentile of the latency in microseconds. `None` if the client's output lacks it.
    pub p99_us: Option<f64>,
    /// CPU time of the server and, if the server is on Tidelane, of the service, in milliseconds
    /// per 1000 requests.
    pub cpu_ms: f64,
}

/// The parsed output of a load client.
#[derive(Clone, Copy, Debug, PartialEq)]
struct ParsedLoad {
    /// Requests per second.
    rate: f64,
    /// 99th percentile of the latency in microseconds. `None` if the client's output lacks it.
    p99_us: Option<f64>,
    /// Total number of requests. `None` if the client's output lacks it.
    requests: Option<f64>,
}

/// Runs the load once, with the client on the kernel. Returns the results, and the stack that
/// carried the connections.
pub fn run(testbed: &Testbed<'_>, load: &Load) -> Result<(Sample, CarriedBy), Stop> {
    let detector = StackDetector::new(testbed, None)?;
    let cpu = testbed.cpu_seconds()?;
    let start = std::time::Instant::now();
    let finished = testbed
        .shell(Side::Client, &testbed.fill(&load.client))
        .finish(LOAD_MAX)?;
    let seconds = start.elapsed().as_secs_f64();
    let cpu = testbed.cpu_seconds()? - cpu;
    if !finished.status.success() {
        let words = last_lines(&(finished.stdout + &finished.stderr));
        return Err(Stop::Fail(format!("the load failed: {words}")));
    }
    let read = read(load.output_format, &finished.stdout).map_err(Stop::Fail)?;
    let requests = read.requests.unwrap_or(read.rate * seconds).max(1.0);
    let sample = Sample {
        rate: read.rate,
        p99_us: read.p99_us,
        cpu_ms: 1e6 * cpu / requests,
    };
    Ok((sample, detector.detect()?))
}

/// Parses the output of a load client.
fn read(output_format: OutputFormat, text: &str) -> Result<ParsedLoad, String> {
    let missing = || format!("no figures in: {}", last_lines(text));
    match output_format {
        OutputFormat::Wrk => read_wrk(text),
        OutputFormat::RedisBenchmark => read_redis(text).ok_or_else(missing),
        OutputFormat::Ab => read_ab(text),
        OutputFormat::Sysbench => read_sysbench(text).ok_or_else(missing),
        OutputFormat::Json => read_json(text),
        OutputFormat::Microseconds => read_microseconds(text).ok_or_else(missing),
    }
}

fn read_wrk(text: &str) -> Result<ParsedLoad, String> {
    let report = WrkReport::parse(text)?;
    if report.requests.is_none() {
        return Err(format!("no figures in: {}", last_lines(text)));
    }
    Ok(ParsedLoad {
        rate: report.requests_per_second,
        p99_us: report.p99_us,
        requests: report.requests,
    })
}

/// Returns the first word after `label` in the first line that starts with `label`. Blanks before
/// the label are ignored.
fn after<'a>(text: &'a str, label: &str) -> Option<&'a str> {
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with(label))?;
    line.trim_start()
        .strip_prefix(label)?
        .split_whitespace()
        .next()
}

/// Parses the last line of numbers of redis-benchmark, which has these fields:
/// `"GET","rps","avg","min","p50","p95","p99","max"`. Latencies are in milliseconds.
fn read_redis(text: &str) -> Option<ParsedLoad> {
    let line = text
        .lines()
        .rfind(|line| line.starts_with('"') && !line.contains("p99"))?;
    let fields: Vec<f64> = line
        .split(',')
        .skip(1)
        .filter_map(|field| field.trim_matches('"').parse().ok())
        .collect();
    Some(ParsedLoad {
        rate: *fields.first()?,
        p99_us: fields.get(5).map(|ms| ms * 1e3),
        requests: None,
    })
}

fn read_ab(text: &str) -> Result<ParsedLoad, String> {
    let failed = after(text, "Failed requests:").unwrap_or("0");
    if failed != "0" {
        return Err(format!("{failed} requests failed"));
    }
    let number = |label: &str| after(text, label).and_then(|word| word.parse::<f64>().ok());
    let rate = number("Requests per second:").ok_or("no figures")?;
    Ok(ParsedLoad {
        rate,
        p99_us: number("99%").map(|ms| ms * 1e3),
        requests: number("Complete requests:"),
    })
}

fn read_sysbench(text: &str) -> Option<ParsedLoad> {
    let line = text
        .lines()
        .find(|line| line.trim_start().starts_with("queries:"))?;
    let mut words = line.split_whitespace().skip(1);
    let requests = words.next()?.parse().ok();
    let rate = words.next()?.trim_start_matches('(').parse().ok()?;
    let p99 = after(text, "99th percentile:").and_then(|word| word.parse::<f64>().ok());
    Some(ParsedLoad {
        rate,
        p99_us: p99.map(|ms| ms * 1e3),
        requests,
    })
}

fn read_json(text: &str) -> Result<ParsedLoad, String> {
    let line = text
        .lines()
        .rfind(|line| line.starts_with('{'))
        .unwrap_or_default();
    let value: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
    if value["errors"].as_u64().unwrap_or(0) > 0 {
        return Err(format!("errors: {line}"));
    }
    Ok(ParsedLoad {
        rate: value["rps"].as_f64().ok_or("no rps")?,
        p99_us: value["latency_us"]["p99"].as_f64(),
        requests: value["requests"].as_f64(),
    })
}

/// Parses lines with the duration of each request in microseconds. The requests are sequential, so
/// the sum of the durations counts as the duration of the load.
fn read_microseconds(text: &str) -> Option<ParsedLoad> {
    let mut times: Vec<f64> = text
        .lines()
        .filter_map(|line| line.trim().parse().ok())
        .collect();
    times.sort_by(f64::total_cmp);
    let total: f64 = times.iter().sum();
    let index = (times.len() * 99).div_ceil(100).checked_sub(1)?;
    let requests = times.len() as f64;
    Some(ParsedLoad {
        rate: requests * 1e6 / total.max(1.0),
        p99_us: times.get(index).copied(),
        requests: Some(requests),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn outputs_are_read() {
        let wrk = "  Latency Distribution\n     99%    1.50ms\n  500 requests in 2.00s, 1MB read\n\
            Requests/sec:    250.00\n";
        let want = ParsedLoad {
            rate: 250.0,
            p99_us: Some(1500.0),
            requests: Some(500.0),
        };
        assert_eq!(read(OutputFormat::Wrk, wrk), Ok(want));
        assert!(read(OutputFormat::Wrk, "  Socket errors: connect 0, read 3\n").is_err());
        let redis = "\"test\",\"rps\",\"avg\",\"min\",\"p50\",\"p95\",\"p99\",\"max\"\n\
            \"GET\",\"5000.0\",\"1\",\"2\",\"3\",\"4\",\"0.5\",\"6\"\n";
        let want = ParsedLoad {
            rate: 5000.0,
            p99_us: Some(500.0),
            requests: None,
        };
        assert_eq!(read(OutputFormat::RedisBenchmark, redis), Ok(want));
        let sysbench = "    queries:                             840    (419.21 per sec.)\n\
            99th percentile:                        9.50\n";
        let want = ParsedLoad {
            rate: 419.21,
            p99_us: Some(9500.0),
            requests: Some(840.0),
        };
        assert_eq!(read(OutputFormat::Sysbench, sysbench), Ok(want));
        let json = "{\"rps\":10.0,\"errors\":0,\"requests\":20,\"latency_us\":{\"p99\":7}}\n";
        let want = ParsedLoad {
            rate: 10.0,
            p99_us: Some(7.0),
            requests: Some(20.0),
        };
        assert_eq!(read(OutputFormat::Json, json), Ok(want));
        let want = ParsedLoad {
            rate: 4e4,
            p99_us: Some(40.0),
            requests: Some(2.0),
        };
        assert_eq!(read(OutputFormat::Microseconds, "10\n40\n"), Ok(want));
        assert!(read(OutputFormat::Microseconds, "").is_err());
    }
}
