//! `tidelane down`: stops the service (`tidelaned`) and waits until its process has ended.

use std::{
    fs, thread,
    time::{Duration, Instant},
};

use serde_json::Value;

use crate::{admin::ServiceName, failure::Failure};

/// Time limit for the end of the service.
const ENDED_WITHIN: Duration = Duration::from_secs(10);

/// Stops the service.
pub fn down(service: &ServiceName) -> Result<(), Failure> {
    let pid = fs::read_to_string(service.run_dir().join("pid")).unwrap_or_default();
    service.ask::<Value>("down")?;
    let start = Instant::now();
    while service.is_running() || runs(pid.trim()) {
        if start.elapsed() > ENDED_WITHIN {
            let text = format!("service {:?} did not end in {ENDED_WITHIN:?}", service.name);
            return Err(Failure::new(text));
        }
        thread::sleep(Duration::from_millis(10));
    }
    println!("tidelane: service {:?} is down", service.name);
    Ok(())
}

/// Returns true if the process `pid` exists and is not a zombie.
fn runs(pid: &str) -> bool {
    if pid.is_empty() {
        return false;
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat
        .rsplit(')')
        .next()
        .and_then(|rest| rest.split_whitespace().next());
    !matches!(state, None | Some("Z" | "X"))
}
