//! Ends of records in the send stream: what is written after MSG_EOR does not share a packet with
//! what was written before. The engine is told of the bytes behind one only when it has sent all
//! before it.

use tidelane_engine::{FlowId, SocketOptions};

use crate::{
    errno::{Answer, Errno},
    stack::Stack,
};

impl Stack {
    /// Appends to the send stream; `ends_record`: what follows must not be joined with this.
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
            streams.marks.end_record(written);
        }
        self.release_records(id)
    }

    /// Tells the engine of all that it may know.
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

    /// All at once: nothing will follow.
    pub(crate) fn release_all(&mut self, id: FlowId) -> Answer<()> {
        self.wire.streams(id).record_ends.clear();
        self.release_records(id)
    }

    /// `followed`: there is more behind, so a small segment does not wait (as in Linux, where Nagle
    /// is for the last buffer of the queue only).
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
            engine.tx_advance(now, id, to, wire)
        })
        .map_err(|_| Errno(libc::EPIPE))?;
        if let Some(options) = pushed {
            self.quietly(|engine, now, wire| engine.set_options(now, id, options, wire));
        }
        Ok(())
    }

    /// Bytes written and not sent, those included that the engine does not know of yet.
    pub(crate) fn unsent_of(&self, id: FlowId) -> u32 {
        let (Some(flow), Some(info)) = (self.flow(id), self.flow_info(id)) else {
            return 0;
        };
        let written = self.wire.written(id).unwrap_or(flow.tx_head());
        info.unsent + written.wrapping_sub(flow.tx_head())
    }
}
