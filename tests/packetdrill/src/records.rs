//! Ends of records in the send stream. Bytes written after MSG_EOR never share a packet with the
//! bytes before it. The driver therefore advances the engine past the end of a record only once all
//! bytes before it are sent.

use tidelane_engine::{FlowId, SocketOptions};

use crate::{
    errno::{Answer, Errno},
    stack::Stack,
};

impl Stack {
    /// Appends to the send stream. With `ends_record` a record ends behind these bytes.
    pub(crate) fn append(
        &mut self,
        id: FlowId,
        bytes: &[u8],
        push: bool,
        ends_record: bool,
    ) -> Answer<()> {
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

    /// Advances the engine up to the next end of a record.
    pub(crate) fn release_records(&mut self, id: FlowId) -> Answer<()> {
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

    /// Advances the engine past all ends of records, at the end of the stream.
    pub(crate) fn release_all(&mut self, id: FlowId) -> Answer<()> {
        self.wire.streams(id).record_ends.clear();
        self.release_records(id)
    }

    /// Advances the engine to `to`. `followed` is true if more bytes are queued: a small segment
    /// then does not wait, because Linux applies Nagle only to the last buffer of the queue.
    fn advance(&mut self, id: FlowId, to: u32, followed: bool) -> Answer<()> {
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

    /// Returns the number of unsent bytes, including the bytes behind the end of a record.
    pub(crate) fn unsent_of(&self, id: FlowId) -> u32 {
        let (Some(flow), Some(info)) = (self.flow(id), self.flow_info(id)) else {
            return 0;
        };
        let written = self.wire.written(id).unwrap_or(flow.tx_head());
        info.unsent + written.wrapping_sub(flow.tx_head())
    }
}
