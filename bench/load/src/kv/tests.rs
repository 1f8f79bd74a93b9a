//! Tests of the key-value client. Some tests use a small server that runs on a thread of the test.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    thread,
};

use super::*;

/// Serves one client by memcached's text protocol. `change` may change each value before the server
/// stores the value.
fn serve(stream: TcpStream, change: fn(&mut Vec<u8>)) -> io::Result<()> {
    stream.set_nodelay(true)?;
    let mut input = BufReader::new(stream.try_clone()?);
    let mut output = stream;
    let mut store: HashMap<String, Vec<u8>> = HashMap::new();
    let mut line = String::new();
    while input.read_line(&mut line)? > 0 {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["set", key, "0", "0", len] => {
                let mut value = vec![0; len.parse::<usize>().expect("a length") + 2];
                input.read_exact(&mut value)?;
                assert!(value.ends_with(b"\r\n"));
                value.truncate(value.len() - 2);
                change(&mut value);
                store.insert(key.to_owned(), value);
                output.write_all(b"STORED\r\n")?;
            }
            ["get", key] => {
                let value = store.get(key).expect("a stored key");
                // Write the answer in parts, so that the client may have to join the parts.
                write!(output, "VALUE {key} 0 {}\r\n", value.len())?;
                output.write_all(value)?;
                output.write_all(b"\r\nEND\r\n")?;
            }
            _ => panic!("{line:?}"),
        }
        line.clear();
    }
    Ok(())
}

/// Returns the options of a client that has one connection to `listener` and ends after 500
/// answers.
fn options(listener: &TcpListener, rate: f64) -> io::Result<Options> {
    Ok(Options {
        connect: listener.local_addr()?,
        connections: 1,
        seconds: 0.0,
        warmup: 0.0,
        rate,
        keys: 20,
        bytes: 1024,
        set_percent: 10,
        total: 500,
    })
}

/// Runs a client with one connection and `rate` requests per second, until 500 answers. A rate of
/// zero means a closed loop: each answer triggers the next request.
fn run_with(rate: f64, change: fn(&mut Vec<u8>)) -> io::Result<Value> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let options = options(&listener, rate)?;
    let server = thread::spawn(move || {
        let (stream, _) = listener.accept()?;
        serve(stream, change)
    });
    let result = (|| {
        let mut client = Client::open(&options, TIMEOUT)?;
        client.store_all()?;
        client.run()
    })();
    let served = server.join().expect("the server does not panic");
    if result.is_ok() {
        served?;
    }
    result
}

#[test]
fn a_closed_loop_counts_every_answer() {
    let line = run_with(0.0, |_| {}).expect("all answers are right");
    assert_eq!(line["requests"], 500);
    assert_eq!(line["offered_rps"], 0.0);
    assert_eq!(line["overdue"], 0);
    for name in ["mean", "p50", "p99"] {
        assert!(line["latency_us"][name].as_f64().expect("a number") > 0.0);
    }
}

#[test]
fn an_open_loop_does_not_exceed_its_rate() {
    let line = run_with(10_000.0, |_| {}).expect("all answers are right");
    assert_eq!(line["requests"], 500);
    // The 500th request is due 49.9 ms after the first.
    assert!(line["seconds"].as_f64().expect("a number") >= 0.0499);
}

#[test]
fn a_changed_value_ends_the_client() {
    let error = run_with(0.0, |value| value[1000] ^= 1).expect_err("a wrong value");
    assert!(error.to_string().contains("another answer"), "{error}");
}

#[test]
fn answers_are_compared_across_any_parts() {
    let items = Items::new(1, 40);
    let operation = Operation::Get(0);
    let answer = items.answer(operation);
    let pending = || Pending {
        operation,
        start: Instant::now(),
        sent: 0,
        received: 0,
    };
    for cut in 1..answer.len() {
        let mut split = pending();
        assert!(!split.feed(&answer[..cut], answer).expect("a part"));
        assert!(split.feed(&answer[cut..], answer).expect("the rest"));
        let mut wrong = answer.to_vec();
        wrong[cut] ^= 1;
        assert!(pending().feed(&wrong, answer).is_err());
    }
    let longer = [answer, b"x"].concat();
    assert!(pending().feed(&longer, answer).is_err());
}

#[test]
fn a_silent_server_ends_the_client() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let options = options(&listener, 0.0)?;
    let patience = Duration::from_millis(10);
    let mut client = Client::open(&options, patience)?;
    let error = client.store_all().expect_err("no object is stored");
    assert!(error.to_string().contains("not stored"), "{error}");
    let mut client = Client::open(&options, patience)?;
    let error = client.run().expect_err("no answer");
    assert!(error.to_string().contains("does not answer"), "{error}");
    Ok(())
}

#[test]
fn a_server_that_closes_ends_the_client() -> io::Result<()> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let options = options(&listener, 0.0)?;
    let mut client = Client::open(&options, TIMEOUT)?;
    drop(listener.accept()?);
    assert!(client.run().is_err());
    Ok(())
}
