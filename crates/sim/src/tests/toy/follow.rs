//! The toy's other nodes: each logs and runs copies of what the main node has logged.
//!
//! It wants them one after the other and each once, and stops if it gets anything else: that is what the links
//! promise, from one fresh stream to the next.

use ordain_log::{LogWriter, Progress};
use ordain_model::{Batch, Epoch, Micros, ReferenceExecutor};
use ordain_role::{Address, Bytes, Event, NodeId, Now, Outbox, PeerState, Role, TimerId};

use super::{Digests, MAIN, Message, Mistake, ORDER, Toy};

pub const FOLLOW: u16 = 2;

/// The follower of a node.
pub fn of(node: NodeId) -> Address {
    Address { node, role: FOLLOW }
}

pub struct Follow {
    node: NodeId,
    forks: bool,
    log: LogWriter,
    reference: ReferenceExecutor,
    last: Epoch,
    digests: Digests,
}

impl Follow {
    pub fn new(node: NodeId, toy: &Toy, log: LogWriter, batches: &[Batch]) -> Follow {
        let mut follow = Follow {
            node,
            forks: toy.mistake == Some(Mistake::ForkCopy),
            log,
            reference: ReferenceExecutor::new(toy.registry.clone()),
            last: Epoch(0),
            digests: toy.digests.clone(),
        };
        batches.iter().for_each(|batch| follow.run(batch));
        follow
    }

    fn run(&mut self, batch: &Batch) {
        self.reference.run(batch);
        self.last = batch.epoch;
        if let Ok(mut digests) = self.digests.lock() {
            digests.insert(self.node, (self.last, self.reference.digest()));
        }
    }

    fn take(&mut self, batch: &Batch, out: &mut Outbox<Message>) {
        let mut entry = batch.clone();
        if self.forks && batch.epoch.0.is_multiple_of(8) {
            entry.now.0 += 1;
        }
        if let Err(error) = self.log.append(entry.epoch, 0, vec![Bytes::from(entry.encode())]) {
            return out.halt(error.to_string());
        }
        self.run(&entry);
    }
}

impl Role for Follow {
    type Message = Message;

    fn name(&self) -> &'static str {
        "follow"
    }

    fn handle(&mut self, _now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        match event {
            Event::Message { message: Message::Peer(change), .. } => {
                if change.node == MAIN && change.state == PeerState::Fresh {
                    out.send(Address { node: MAIN, role: ORDER }, Message::Follow { after: self.last });
                }
            }
            Event::Message { message: Message::Copy { before, batch }, .. } => {
                if before != self.last {
                    return out
                        .halt(format!("a copy is missing or came twice: {before} after {}", self.last));
                }
                self.take(&batch, out);
            }
            Event::Message { .. } => out.halt("not for me"),
            Event::Disk(done) => match self.log.done(&done) {
                Some(Progress::Full { .. }) => out.set_timer(TimerId(1), Micros::from_millis(3)),
                Some(Progress::Failed { reason }) => out.halt(reason),
                Some(Progress::Durable(_)) | None => {}
            },
            Event::Timer(_) => self.log.retry(),
            Event::Start | Event::Work(_) | Event::Stop => {}
        }
        while let Some(request) = self.log.next_request() {
            out.disk(request);
        }
    }
}
