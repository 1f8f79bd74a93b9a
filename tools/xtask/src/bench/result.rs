//! The samples of a request figure (an experiment of `bench/figures` in which clients send requests
//! to a server), and the rows that are computed from the samples.

use std::collections::BTreeMap;

use tidelane_tests::machine::median;

use super::{
    heading::Heading,
    plan::{Plan, Series},
    rows::{Row, pair_row, value_row},
};

/// A combination of the server's stack and the path between client and server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Variant {
    /// Server on the kernel, over veth.
    Kernel,
    /// Server on Tidelane and client on the kernel, over veth.
    Tidelane,
    /// Server on the kernel, over veth. Each core has a spinning thread of the lowest priority, so
    /// that no core goes idle.
    KernelNoIdle,
    /// Over veth, with the stateless AF_XDP echo instead of a server. The echo answers each segment
    /// without TCP, so that its rate is the upper limit of the wire.
    Limit,
    /// Server and client on the kernel, over loopback.
    Loopback,
    /// Server and client on one service, over the local path. The local path passes the bytes in
    /// memory.
    LocalPath,
}

impl Variant {
    /// Returns the name in the table.
    pub fn name(self) -> &'static str {
        match self {
            Self::Kernel => "kernel",
            Self::Tidelane => "tidelane",
            Self::KernelNoIdle => "kernel, no idle exits",
            Self::Limit => "wire's limit",
            Self::Loopback => "kernel, loopback",
            Self::LocalPath => "tidelane, memory",
        }
    }
}

/// The values of one measurement.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sample {
    /// Requests per second.
    pub requests_per_second: f64,
    /// Median latency in microseconds.
    pub p50_us: f64,
    /// 99th percentile of latency in microseconds.
    pub p99_us: f64,
    /// Mean number of busy CPUs among the client's CPUs.
    pub client_busy: f64,
    /// Mean number of busy CPUs among the server's CPUs.
    pub server_busy: f64,
}

/// Index of the series in the plan, number of connections, and variant.
pub type Key = (usize, u32, Variant);

/// The samples of each key, in the order of the rounds.
#[derive(Debug, Default)]
pub struct Results(BTreeMap<Key, Vec<Sample>>);

/// A function that computes one metric of a sample.
type Metric = fn(&Sample) -> f64;

/// The metrics. Each entry has the name, true if a higher value is better, and the function.
const METRICS: &[(&str, bool, Metric)] = &[
    ("requests_per_second", true, |s| s.requests_per_second),
    ("latency_p50_us", false, |s| s.p50_us),
    ("latency_p99_us", false, |s| s.p99_us),
    ("requests_per_second_per_total_core", true, |s| {
        s.requests_per_second / (s.client_busy + s.server_busy).max(0.01)
    }),
    ("server_cpu_us_per_request", false, |s| {
        s.server_busy * 1e6 / s.requests_per_second.max(1.0)
    }),
];

impl Results {
    /// Adds the sample of the next round.
    pub fn add(&mut self, key: Key, sample: Sample) {
        self.0.entry(key).or_default().push(sample);
    }

    fn values(&self, key: Key, metric: Metric) -> Option<Vec<f64>> {
        let samples = self.0.get(&key)?;
        Some(samples.iter().map(metric).collect())
    }

    /// Returns the median requests per second of a key, if it was measured.
    pub fn requests_per_second(&self, key: Key) -> Option<f64> {
        self.values(key, |s| s.requests_per_second)
            .map(|values| median(&values))
    }

    /// Returns the rows of the result.
    pub fn rows(&self, plan: &Plan) -> Vec<Row> {
        let heading = plan.heading();
        let mut rows = Vec::new();
        for (index, series) in plan.series.iter().enumerate() {
            for connections in &series.connections {
                self.veth_rows(&heading, series, (index, *connections), &mut rows);
                self.memory_rows(&heading, series, (index, *connections), &mut rows);
            }
        }
        rows
    }

    /// Returns the rows of `metrics` for one case. `sides` has the kernel's key and Tidelane's key.
    /// A metric without samples of both sides has no row.
    fn pair_rows<'a>(
        &'a self,
        heading: &'a Heading,
        case: &'a str,
        metrics: &'a [(&'static str, bool, Metric)],
        sides: [Key; 2],
    ) -> impl Iterator<Item = Row> + 'a {
        metrics.iter().filter_map(move |(metric, higher, of)| {
            let [kernel, tidelane] = sides.map(|key| self.values(key, *of));
            pair_row(heading, case, (metric, *higher), kernel, tidelane)
        })
    }

    /// Adds the rows of one case over veth. `at` is the index of the series and the number of
    /// connections.
    fn veth_rows(&self, heading: &Heading, series: &Series, at: (usize, u32), rows: &mut Vec<Row>) {
        let key = |variant| (at.0, at.1, variant);
        let case = series.case("veth", at.1);
        let sides = [Variant::Kernel, Variant::Tidelane].map(key);
        rows.extend(self.pair_rows(heading, &case, METRICS, sides));
        let awake = format!("{case}, kernel without idle exits");
        let sides = [Variant::KernelNoIdle, Variant::Tidelane].map(key);
        rows.extend(self.pair_rows(heading, &awake, &METRICS[..3], sides));
        let rps: Metric = |s| s.requests_per_second;
        if let Some(limit) = self.values(key(Variant::Limit), rps) {
            let name = "wire_limit_requests_per_second";
            rows.push(value_row(heading, &case, name, &limit));
            if let Some(tidelane) = self.values(key(Variant::Tidelane), rps) {
                let share: Vec<f64> = tidelane.iter().zip(&limit).map(|(t, l)| t / l).collect();
                rows.push(value_row(heading, &case, "share_of_wire_limit", &share));
            }
        }
    }

    /// Adds the rows that compare the local path with the faster of the kernel's two paths, veth
    /// and loopback. Adds nothing if one of the kernel's paths was not measured.
    fn memory_rows(
        &self,
        heading: &Heading,
        series: &Series,
        at: (usize, u32),
        rows: &mut Vec<Row>,
    ) {
        let key = |variant| (at.0, at.1, variant);
        let case = series.case("memory", at.1);
        let rps: Metric = |s| s.requests_per_second;
        let Some(veth) = self.values(key(Variant::Kernel), rps) else {
            return;
        };
        let Some(loopback) = self.values(key(Variant::Loopback), rps) else {
            return;
        };
        let best = if median(&loopback) >= median(&veth) {
            Variant::Loopback
        } else {
            Variant::Kernel
        };
        let sides = [best, Variant::LocalPath].map(key);
        rows.extend(self.pair_rows(heading, &case, METRICS, sides));
    }
}

#[cfg(test)]
mod tests {
    use super::{super::rows::to_json, *};

    const PLAN: &str = r#"
        title = "t"
        paper = "p"
        rounds = 3
        seconds = 1.0
        warmup = 0.1
        congestion = "cubic"
        client_cpus = "0"
        server_cpus = "1"
        [[series]]
        workload = "echo"
        connections = [1, 64]
        memory = true
        limit = true
        [[target]]
        case = "veth, 64 connections"
        metric = "requests_per_second"
        target = 1.3
        [[target]]
        case = "veth, 64 connections"
        metric = "latency_p99_us"
        target = 1.0
    "#;

    fn results() -> Results {
        let mut results = Results::default();
        let sample = |rps: f64| Sample {
            requests_per_second: rps,
            p50_us: 1e6 / rps,
            p99_us: 2e6 / rps,
            client_busy: 1.0,
            server_busy: 0.5,
        };
        for (variant, samples) in [
            (Variant::Kernel, [100.0, 200.0, 300.0]),
            (Variant::Tidelane, [150.0, 150.0, 900.0]),
            (Variant::Loopback, [100.0, 250.0, 300.0]),
            (Variant::LocalPath, [500.0, 500.0, 500.0]),
            (Variant::Limit, [300.0, 300.0, 1000.0]),
        ] {
            for rps in samples {
                results.add((0, 64, variant), sample(rps));
            }
        }
        results
    }

    fn row<'a>(rows: &'a [Row], case: &str, metric: &str) -> &'a Row {
        let found = rows
            .iter()
            .find(|row| row.case == case && row.metric == metric);
        found.unwrap_or_else(|| panic!("no row {case} {metric}"))
    }

    #[test]
    fn ratios_are_taken_pair_by_pair() {
        let plan: Plan = toml::from_str(PLAN).expect("a plan");
        let rows = results().rows(&plan);
        let veth = row(&rows, "veth, 64 connections", "requests_per_second");
        let pair = veth.pair.expect("both sides");
        assert_eq!((pair.baseline, pair.tidelane), (200.0, 150.0));
        assert_eq!(pair.ratio, [1.5, 0.75, 3.0]);
        assert_eq!(veth.reached(), Some(true));
        let p99 = row(&rows, "veth, 64 connections", "latency_p99_us");
        assert_eq!(p99.reached(), Some(true));
        let share = row(&rows, "veth, 64 connections", "share_of_wire_limit");
        assert_eq!(share.value, Some(0.5));
        let memory = row(&rows, "memory, 64 connections", "requests_per_second");
        assert_eq!(memory.pair.map(|pair| pair.baseline), Some(250.0));
        assert!(rows.iter().all(|row| !row.case.contains("1 connection")));
    }

    #[test]
    fn a_result_has_the_documented_fields() {
        let plan: Plan = toml::from_str(PLAN).expect("a plan");
        let json = to_json(
            "tas-fig4",
            &plan.heading(),
            &results().rows(&plan),
            "make bench",
        );
        for name in ["figure", "commit", "machine", "command", "placement"] {
            assert!(json[name].is_string(), "{name}");
        }
        let row = &json["rows"][0];
        assert_eq!(row["better"], "higher");
        for name in [
            "kernel",
            "tidelane",
            "ratio",
            "ratio_min",
            "ratio_max",
            "rounds",
            "target",
        ] {
            assert!(row[name].is_number(), "{name}");
        }
    }
}
