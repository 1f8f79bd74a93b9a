//! Requests to a running Tidelane service (`tidelaned`) over its admin socket: one line of JSON
//! each way. Bytes of a capture file may follow the line of an answer.

use std::{
    io::{self, BufRead, BufReader, Read, Write},
    os::unix::net::UnixStream,
    path::PathBuf,
    time::Duration,
};

use clap::Args;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::failure::{Context, Failure};

/// Longest wait of one read or write on the admin socket.
const ANSWER_MAX: Duration = Duration::from_secs(10);
/// Longest accepted answer in bytes. The limit suffices to list a million sockets.
const ANSWER_LEN_MAX: u64 = 1 << 30;

/// The command-line option `--name`, which selects a service.
#[derive(Args, Clone, Debug)]
pub struct ServiceName {
    /// Name of the service
    #[arg(long, default_value = "default")]
    pub name: tidelane_places::ServiceName,
}

impl ServiceName {
    /// Returns the service's run directory.
    pub fn run_dir(&self) -> PathBuf {
        tidelane_places::run_dir(&self.name)
    }

    /// Returns the path of the socket at which programs register.
    pub fn control_socket(&self) -> PathBuf {
        self.run_dir().join("control.sock")
    }

    /// Returns true if a service with this name answers a request. Also returns true if the service
    /// accepts the request, but does not answer within [`ANSWER_MAX`].
    ///
    /// An accepted connection does not prove that the service runs. The socket of a killed service
    /// accepts connections until the last thread of the service has ended. Then the socket closes
    /// these connections without an answer.
    pub fn is_running(&self) -> bool {
        match self.exchange("status") {
            Ok(line) => !line.is_empty(),
            Err(error) => matches!(
                error.kind(),
                io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut
            ),
        }
    }

    /// Returns the failure of a command whose service is not running.
    pub fn not_running(&self) -> Failure {
        let name = &self.name;
        let option = if name.as_str() == "default" {
            String::new()
        } else {
            format!(" --name {name}")
        };
        Failure::new(format!(
            "service {name:?} is not running; start it with: tidelane up INTERFACE{option}"
        ))
    }

    /// Sends the request `op` and parses the answer.
    pub fn ask<T: DeserializeOwned>(&self, op: &str) -> Result<T, Failure> {
        self.request(&json!({ "op": op }))
    }

    /// Sends a request and parses the answer.
    pub fn request<T: DeserializeOwned>(&self, request: &Value) -> Result<T, Failure> {
        Ok(self.request_with_data(request, |_| 0)?.0)
    }

    /// Sends a request and parses the answer. `data_len` computes from the answer the number of
    /// bytes that follow the line of the answer. The function returns the answer and these bytes.
    pub fn request_with_data<T: DeserializeOwned>(
        &self,
        request: &Value,
        data_len: impl FnOnce(&T) -> u64,
    ) -> Result<(T, Vec<u8>), Failure> {
        let mut answers = self
            .send(request)
            .map_err(|error| self.failure_of(&error))?;
        let mut line = String::new();
        answers
            .read_line(&mut line)
            .map_err(|error| self.failure_of(&error))?;
        if line.is_empty() {
            return Err(Failure::new(format!(
                "service {:?} closed without an answer",
                self.name
            )));
        }
        let value: Value = serde_json::from_str(&line)
            .map_err(|error| Failure::new(format!("the service's answer is not JSON: {error}")))?;
        if let Some(error) = value.get("error").and_then(|error| error.as_str()) {
            return Err(Failure::new(format!("service {:?}: {error}", self.name)));
        }
        let answer: T = serde_json::from_value(value)
            .map_err(|error| Failure::new(format!("unexpected answer of the service: {error}")))?;
        let len = data_len(&answer);
        let mut data = Vec::new();
        let read = answers.take(len).read_to_end(&mut data);
        match read.map_err(|error| self.failure_of(&error))? as u64 {
            read if read == len => Ok((answer, data)),
            _ => Err(Failure::new(format!(
                "service {:?} closed within an answer",
                self.name
            ))),
        }
    }

    /// Sends the request `op` and returns the line of the answer. The line is empty if the service
    /// closes the connection first.
    fn exchange(&self, op: &str) -> io::Result<String> {
        let mut line = String::new();
        self.send(&json!({ "op": op }))?.read_line(&mut line)?;
        Ok(line)
    }

    /// Sends a request. Returns a reader of the answer.
    fn send(&self, request: &Value) -> io::Result<impl BufRead> {
        let mut stream = UnixStream::connect(self.run_dir().join("admin.sock"))?;
        stream.set_read_timeout(Some(ANSWER_MAX))?;
        stream.set_write_timeout(Some(ANSWER_MAX))?;
        stream.write_all(format!("{request}\n").as_bytes())?;
        Ok(BufReader::new(stream.take(ANSWER_LEN_MAX)))
    }

    /// Returns the failure for an error of [`Self::send`], or of the reader that `send` returns.
    fn failure_of(&self, error: &io::Error) -> Failure {
        match error.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused => self.not_running(),
            io::ErrorKind::PermissionDenied => Failure::new(format!(
                "only root may send requests to service {:?}; use sudo",
                self.name
            )),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                let seconds = ANSWER_MAX.as_secs();
                Failure::new(format!(
                    "service {:?} gave no answer in {seconds} s",
                    self.name
                ))
            }
            _ => Failure::new(format!("service {:?}: {error}", self.name)),
        }
    }
}

/// Returns the path of the program or library `name`, which is in the same directory as this
/// program.
pub fn sibling_path(name: &str) -> Result<PathBuf, Failure> {
    let own = std::env::current_exe().context("cannot find this program's own file")?;
    let path = own.with_file_name(name);
    if path.is_file() {
        return Ok(path);
    }
    Err(Failure::new(format!(
        "{} is missing beside tidelane",
        path.display()
    )))
}
