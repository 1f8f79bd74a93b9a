//! The check of the responses of the HTTP server `tidelane-http`. The head of a response is its
//! status line and header fields.

use std::io;

use memchr::memmem;

use crate::alphabet::PAGE;

/// Longest incomplete head of a response, in bytes.
const HEAD_LEN_MAX: usize = 1024;

/// State of a response that is being received.
#[derive(Debug)]
pub struct Response {
    /// The bytes of an incomplete head. `None` once the head is complete.
    head: Option<Vec<u8>>,
    /// Number of received body bytes.
    received: usize,
    /// Expected length of the body in bytes.
    body_len: usize,
}

impl Response {
    /// Returns the state before the first byte of a response whose body has `body_len` bytes.
    pub fn new(body_len: usize) -> Self {
        Self {
            head: Some(Vec::new()),
            received: 0,
            body_len,
        }
    }

    /// Handles received bytes. Fails if an incomplete head is longer than `HEAD_LEN_MAX`, or if
    /// the status is not 200. Also fails if the body is longer than `body_len`, or does not repeat
    /// the letters `a` to `z`.
    pub fn receive(&mut self, bytes: &[u8]) -> io::Result<()> {
        let Some(head) = &mut self.head else {
            return self.receive_body(bytes);
        };
        let before = head.len();
        head.extend_from_slice(bytes);
        let Some(end) = memmem::find(head, b"\r\n\r\n") else {
            return match head.len() > HEAD_LEN_MAX {
                true => Err(invalid("the head of a response has no end")),
                false => Ok(()),
            };
        };
        if !head.starts_with(b"HTTP/1.1 200 ") {
            return Err(invalid("the status of a response is not 200"));
        }
        self.head = None;
        self.receive_body(&bytes[end + 4 - before..])
    }

    fn receive_body(&mut self, bytes: &[u8]) -> io::Result<()> {
        let wrong = || invalid("the body of a response has wrong bytes");
        if bytes.len() > self.body_len - self.received {
            return Err(wrong());
        }
        let mut rest = bytes;
        while !rest.is_empty() {
            let expected = &PAGE[self.received % 26..];
            let (part, later) = rest.split_at(rest.len().min(expected.len()));
            if part != &expected[..part.len()] {
                return Err(wrong());
            }
            self.received += part.len();
            rest = later;
        }
        Ok(())
    }

    /// Returns true if the whole response was received.
    pub fn is_complete(&self) -> bool {
        self.head.is_none() && self.received == self.body_len
    }
}

fn invalid(text: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, text.to_owned())
}
