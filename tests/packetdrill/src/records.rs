//! Ends of records in the send stream (MSG_EOR).
//!
//! A record ends where a write with the flag MSG_EOR ends. Bytes written after this write do not
//! share a packet with the bytes of the record. The engine (Tidelane's TCP) knows no records. The
//! stack therefore withholds the bytes after the end of a record from the engine until all bytes of
//! the record are sent. `Wire::transmit` splits retransmissions at the ends of records.

use tidelane_engine::{FlowId, SocketOptions};

use crate::{
    errno::{CallResult, Errno},
    stack::Stack,
};

impl Stack {
    /// Appends `bytes` to the send stream of the flow (connection) `id`. `push` is true if a write
    /// without MSG_MORE ends with these bytes. `ends_record` is true if a record ends with these
    /// bytes.
    pub(crate) fn append(
        &mut self,
        id: FlowId,
        bytes: &[u8],
        push: bool,
        ends_record: bool,
    ) -> CallResult<()> {
        let head = self.flow(id).ok_or(Errno(libc::EPIPE))?.tx_head();
        let streams = self.wire.streams(id);
        let written = streams
            .written
            .unwrap_or(head)
            .wrapping_add(bytes.len() as u32);
        streams.tx.append(bytes);
        streams.written = Some(written);
        self.mark_push(id, written, push);
        let streams = self.wire.streams(id);
        if ends_record {
            streams.record_ends.push_back(written);
            streams.packet_ends.end_record(written);
        }
        self.release_records(id)
    }

    /// Passes written bytes to the engine, record by record, up to the end of the first record that
    /// is not sent completely. If there is no such record, passes all written bytes.
    pub(crate) fn release_records(&mut self, id: FlowId) -> CallResult<()> {
        loop {
            let Some(flow) = self.flow(id) else {
                return Ok(());
            };
            let (known, sent) = (flow.tx_head(), flow.tx_pos(flow.snd_nxt));
            let streams = self.wire.streams(id);
            let Some(written) = streams.written else {
                return Ok(());
            };
            let end = streams.record_ends.front().copied();
            let target = end.unwrap_or(written);
            if known != target {
                self.advance(id, target, target != written)?;
            } else if end == Some(known) && sent == known {
                self.wire.streams(id).record_ends.pop_front();
            } else {
                return Ok(());
            }
        }
    }

    /// Passes all written bytes to the engine, whether or not the records before these bytes are
    /// sent. The stack calls this function when the program closes the connection or shuts down the
    /// sending side.
    pub(crate) fn release_all(&mut self, id: FlowId) -> CallResult<()> {
        self.wire.streams(id).record_ends.clear();
        self.release_records(id)
    }

    /// Passes the bytes before the stream position `to` to the engine.
    ///
    /// `followed` is true if the stack withholds later bytes. Nagle's algorithm is then switched
    /// off for the passed bytes, because Linux applies Nagle's algorithm only to the last buffer of
    /// the send queue.
    fn advance(&mut self, id: FlowId, to: u32, followed: bool) -> CallResult<()> {
        let owner = self.flows.get(&id).and_then(|flow| flow.owner);
        let options = owner
            .and_then(|fd| self.socket(fd).ok())
            .map(|s| s.options.engine);
        let pushed = options.filter(|options| followed && !options.nodelay);
        self.drive(|engine, now, wire| {
            if let Some(options) = pushed {
                let nodelay = true;
                engine.set_options(now, id, SocketOptions { nodelay, ..options }, wire);
            }
            engine.tx_advance(id, to)
        })
        .map_err(|_| Errno(libc::EPIPE))?;
        if let Some(options) = pushed {
            self.call_in_batch(|engine, now, wire| engine.set_options(now, id, options, wire));
        }
        Ok(())
    }

    /// Returns the number of written bytes that are not sent yet, including the bytes that are
    /// withheld from the engine.
    pub(crate) fn unsent_of(&self, id: FlowId) -> u32 {
        let (Some(flow), Some(info)) = (self.flow(id), self.flow_info(id)) else {
            return 0;
        };
        let written = self.wire.written(id).unwrap_or(flow.tx_head());
        info.unsent + written.wrapping_sub(flow.tx_head())
    }
}
