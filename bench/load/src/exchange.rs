//! The request that a client repeats, and the check of the answer. The request asks for an echo of
//! its bytes, or is an HTTP GET.

use std::net::SocketAddr;

/// Largest number of bytes that the client accepts before the HTTP response head is complete.
const HEAD_MAX: usize = 8 * 1024;

/// The request of a client, and the answer that the client expects.
#[derive(Debug)]
pub enum Exchange {
    /// Echo: the answer consists of the bytes of the request.
    Echo {
        /// The request.
        request: Vec<u8>,
    },
    /// GET of one path.
    Http {
        /// The request.
        request: Vec<u8>,
        /// The expected body. `None` if bodies are not compared.
        body: Option<Vec<u8>>,
    },
}

/// The received part of an answer.
#[derive(Debug, Default)]
pub struct Progress {
    /// Number of received bytes of the answer (echo) or of the body (HTTP).
    seen: usize,
    /// The received part of the HTTP head. Empty after the head is complete.
    head: Vec<u8>,
    /// Length of the HTTP body in bytes. `None` until the head is complete, and for an echo.
    length: Option<usize>,
}

/// The result of [`Exchange::feed`].
#[derive(Debug, PartialEq, Eq)]
pub enum Fed {
    /// All passed bytes belong to the answer, and the answer is not complete.
    More,
    /// The answer is complete. The number counts the passed bytes that belong to the answer.
    /// Further passed bytes belong to the next answer.
    Complete(usize),
    /// The answer is wrong. The text is the reason.
    Wrong(&'static str),
}

impl Exchange {
    /// Returns an exchange of `len` echoed bytes.
    pub fn echo(len: usize) -> Self {
        Self::Echo {
            request: (0..len).map(|i| (i * 7 + i / 251) as u8).collect(),
        }
    }

    /// Returns a GET of `path`. `close` adds `Connection: close`. `body` is the expected body, or
    /// `None` to accept any body.
    pub fn http(server: SocketAddr, path: &str, close: bool, body: Option<Vec<u8>>) -> Self {
        let connection = if close { "Connection: close\r\n" } else { "" };
        let request = format!("GET {path} HTTP/1.1\r\nHost: {server}\r\n{connection}\r\n");
        Self::Http {
            request: request.into_bytes(),
            body,
        }
    }

    /// Returns the bytes to send.
    pub fn request(&self) -> &[u8] {
        match self {
            Self::Echo { request } | Self::Http { request, .. } => request,
        }
    }

    /// Handles received bytes. `progress` is the received part of the oldest incomplete answer.
    pub fn feed(&self, progress: &mut Progress, bytes: &[u8]) -> Fed {
        match self {
            Self::Echo { request } => {
                take_body(&mut progress.seen, request.len(), Some(request), bytes)
            }
            Self::Http { body, .. } => {
                let rest = match progress.length {
                    Some(_) => bytes,
                    None => match progress.take_head(bytes) {
                        Ok(Some(used)) => &bytes[used..],
                        Ok(None) => return Fed::More,
                        Err(wrong) => return Fed::Wrong(wrong),
                    },
                };
                let Some(length) = progress.length else {
                    return Fed::More;
                };
                if body.as_ref().is_some_and(|body| body.len() != length) {
                    return Fed::Wrong("the length of the body is not the expected one");
                }
                let fed = take_body(&mut progress.seen, length, body.as_deref(), rest);
                match fed {
                    Fed::Complete(used) => Fed::Complete(bytes.len() - rest.len() + used),
                    other => other,
                }
            }
        }
    }
}

/// Handles received bytes of an echo answer or an HTTP body, which has `length` bytes. The first
/// `seen` bytes were received before. Adds to `seen` the number of the bytes that belong to the
/// answer or body. `expected` is `None` if the bytes are not compared.
fn take_body(seen: &mut usize, length: usize, expected: Option<&[u8]>, bytes: &[u8]) -> Fed {
    let used = bytes.len().min(length - *seen);
    if expected.is_some_and(|expected| expected[*seen..*seen + used] != bytes[..used]) {
        return Fed::Wrong("the bytes differ from the expected ones");
    }
    *seen += used;
    if *seen == length {
        Fed::Complete(used)
    } else {
        Fed::More
    }
}

impl Progress {
    /// Adds `bytes` to the head. Returns the number of these bytes that belong to the head, or
    /// `None` if the head is not complete.
    fn take_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, &'static str> {
        let before = self.head.len();
        self.head.extend_from_slice(bytes);
        let from = before.saturating_sub(3);
        let Some(at) = self.head[from..].windows(4).position(|w| w == b"\r\n\r\n") else {
            return if self.head.len() > HEAD_MAX {
                Err("the head is too long")
            } else {
                Ok(None)
            };
        };
        let end = from + at + 4;
        self.length = Some(parse_head(&self.head[..end])?);
        self.head = Vec::new();
        Ok(Some(end - before))
    }
}

/// Returns the Content-Length of a response head. Fails if the status is not 200, or if the head
/// has no valid Content-Length.
fn parse_head(head: &[u8]) -> Result<usize, &'static str> {
    let head = std::str::from_utf8(head).map_err(|_| "the head is not text")?;
    let mut lines = head.split("\r\n");
    let status = lines.next().unwrap_or_default();
    if status.split(' ').nth(1) != Some("200") {
        return Err("the status is not 200");
    }
    for line in lines {
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        if name.eq_ignore_ascii_case("content-length") {
            return value
                .trim()
                .parse()
                .map_err(|_| "the content length is not a number");
        }
    }
    Err("no content length")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn echo_completes_checks_and_leaves_the_rest() {
        let exchange = Exchange::echo(8);
        let sent = exchange.request().to_vec();
        let mut progress = Progress::default();
        assert_eq!(exchange.feed(&mut progress, &sent[..3]), Fed::More);
        let mut rest = sent[3..].to_vec();
        rest.push(0xaa);
        assert_eq!(exchange.feed(&mut progress, &rest), Fed::Complete(5));
        let mut progress = Progress::default();
        let mut bad = sent.clone();
        bad[7] ^= 1;
        assert!(matches!(exchange.feed(&mut progress, &bad), Fed::Wrong(_)));
    }

    #[test]
    fn http_answer_in_any_pieces() {
        let server = "10.0.0.1:80".parse().expect("an address");
        let exchange = Exchange::http(server, "/x", true, Some(b"hello".to_vec()));
        let answer = b"HTTP/1.1 200 OK\r\nServer: x\r\nContent-Length: 5\r\n\r\nhello";
        for cut in 1..answer.len() {
            let mut progress = Progress::default();
            assert_eq!(
                exchange.feed(&mut progress, &answer[..cut]),
                Fed::More,
                "cut {cut}"
            );
            let rest = answer.len() - cut;
            assert_eq!(
                exchange.feed(&mut progress, &answer[cut..]),
                Fed::Complete(rest)
            );
        }
        for wrong in [
            "HTTP/1.1 404 Not Found\r\nContent-Length: 5\r\n\r\nhello",
            "HTTP/1.1 200 OK\r\nContent-Length: 4\r\n\r\nhell",
            "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhellO",
            "HTTP/1.1 200 OK\r\n\r\nhello",
        ] {
            let fed = exchange.feed(&mut Progress::default(), wrong.as_bytes());
            assert!(matches!(fed, Fed::Wrong(_)), "{wrong}");
        }
    }
}
