//! The relay: takes transactions from the front doors of its node to whoever leads their homes, and answers for them.
//!
//! A front door talks to the manager of its own node alone. That keeps what it has passed on until the answer comes: when
//! a home changes its leader, what has a session is asked of the new one, and takes effect once; of anything else nobody
//! may say what has become of it, unless the former leader does.

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_model::{
    Chunk, ChunkNo, Effect, Front, GatewayId, Micros, OutcomeBatch, OutcomeStatus, PartitionId, Stamp, Token,
    Txn,
};
use ordain_role::{Address, NodeId};

use crate::desk::Desk;
use crate::ids::Lead;
use crate::message::{Relay as RelayMessage, Returned};

/// A transaction waits for so long for a leader of its home.
const HOLD_FOR: Micros = Micros::from_millis(5_000);

/// See the module.
#[derive(Debug, Default)]
pub struct Relay {
    chunks: BTreeMap<(GatewayId, ChunkNo), Passed>,
    /// Something waits for a leader.
    waits: bool,
}

/// A chunk of a front door of this node.
#[derive(Debug)]
struct Passed {
    chunk: Arc<Chunk>,
    since: Micros,
    /// The transactions that are not answered, by their place in the list.
    open: BTreeMap<usize, Open>,
}

/// A transaction that is not answered.
#[derive(Clone, Copy, Debug)]
struct Open {
    home: PartitionId,
    /// The leader that has it; `None` while there is none.
    asked: Option<(NodeId, Lead)>,
}

/// Transactions for the coordinator of this very node.
pub type Own = Vec<(Arc<Chunk>, Vec<usize>)>;

impl Relay {
    /// The home of a transaction: the partition that keeps its session if it has one and may write, or the only one that takes
    /// part, or the node's own.
    fn home(chunk: &Chunk, txn: &Txn, desk: &Desk<'_>) -> PartitionId {
        let layout = &desk.site.layout;
        match txn.call.session.filter(|_| !txn.read_only) {
            Some((session, _)) => layout.home_partition_of(session),
            None => chunk.only_partition(txn, layout).unwrap_or(desk.site.partition),
        }
    }

    /// Takes a chunk from a front door of this node.
    pub fn take(&mut self, chunk: Arc<Chunk>, desk: &mut Desk<'_>) -> Own {
        let key = (chunk.gateway, chunk.number);
        let homes = chunk.txns().iter().map(|txn| Relay::home(&chunk, txn, desk));
        let open = homes.enumerate().map(|(at, home)| (at, Open { home, asked: None })).collect();
        self.chunks.insert(key, Passed { chunk, since: desk.elapsed(), open });
        self.pass_on(key, desk)
    }

    /// Passes on what of a chunk waits for a leader that is known now.
    fn pass_on(&mut self, key: (GatewayId, ChunkNo), desk: &mut Desk<'_>) -> Own {
        let Some(passed) = self.chunks.get_mut(&key) else { return Own::new() };
        let mut leaving: BTreeMap<(NodeId, Lead), Vec<usize>> = BTreeMap::new();
        for (at, open) in passed.open.iter_mut().filter(|(_, open)| open.asked.is_none()) {
            open.asked = desk.leaders.of(open.home);
            open.asked.iter().for_each(|to| leaving.entry(*to).or_default().push(*at));
            self.waits |= open.asked.is_none();
        }
        let mut own = Own::new();
        for ((node, lead), places) in leaving {
            if node == desk.site.node {
                own.push((passed.chunk.clone(), places));
                continue;
            }
            let chunk = match places.len() == passed.chunk.txns().len() {
                true => passed.chunk.clone(),
                false => Arc::new(passed.chunk.part(places)),
            };
            let manager = Address { node, role: desk.site.manager };
            desk.out.send(manager, RelayMessage::Submit(lead, chunk));
        }
        own
    }

    /// Passes on everything that waits for a leader that is known now.
    pub fn retry(&mut self, desk: &mut Desk<'_>) -> Own {
        let waiting =
            self.chunks.iter().filter(|(_, passed)| passed.open.values().any(|open| open.asked.is_none()));
        let waiting: Vec<_> = waiting.map(|(key, _)| *key).collect();
        self.waits = false;
        waiting.into_iter().flat_map(|key| self.pass_on(key, desk)).collect()
    }

    /// Hands outcomes to their front door. Those of transactions that nobody waits for are left out.
    pub fn answer(&mut self, mut batch: OutcomeBatch, desk: &mut Desk<'_>) {
        let gateway = batch.gateway;
        let awaited = batch.take_out(|outcome| self.close((gateway, outcome.chunk), outcome.index));
        if !awaited.is_empty() {
            desk.out.send(desk.site.gateway(gateway), Front::Outcomes(awaited));
        }
    }

    /// A transaction is answered; answers whether it was not before.
    fn close(&mut self, key: (GatewayId, ChunkNo), index: u32) -> bool {
        let Some(passed) = self.chunks.get_mut(&key) else { return false };
        let at = passed.chunk.txns().binary_search_by_key(&index, |txn| txn.index);
        let was_open = at.is_ok_and(|at| passed.open.remove(&at).is_some());
        if passed.open.is_empty() {
            self.chunks.remove(&key);
        }
        was_open
    }

    /// Takes back transactions that a node has turned away. Those that it was asked for again meanwhile, under a later claim,
    /// stay there.
    pub fn give_back(&mut self, node: NodeId, returned: &Returned) {
        let Returned { asked, gateway, chunk, indexes } = returned;
        let Some(passed) = self.chunks.get_mut(&(*gateway, *chunk)) else { return };
        for index in indexes {
            let at = passed.chunk.txns().binary_search_by_key(index, |txn| txn.index);
            if let Some(open) = at.ok().and_then(|at| passed.open.get_mut(&at)) {
                open.asked.take_if(|of| *of == (node, *asked));
            }
        }
    }

    /// Gives up a node: transactions passed on to it may not have come, or their answers may be gone. One that has a session
    /// or only reads is asked again, and the end of anything else is not known.
    pub fn lose(&mut self, node: NodeId, desk: &mut Desk<'_>) {
        let is_lost = |open: &Open| open.asked.is_some_and(|(asked, _)| asked == node);
        let mut unknown: BTreeMap<GatewayId, OutcomeBatch> = BTreeMap::new();
        for passed in self.chunks.values_mut() {
            for (at, open) in passed.open.iter_mut().filter(|(_, open)| is_lost(open)) {
                let txn = &passed.chunk.txns()[*at];
                match may_repeat(txn) {
                    true => open.asked = None,
                    false => put(&mut unknown, &passed.chunk, txn, OutcomeStatus::Unknown),
                }
            }
        }
        unknown.into_values().for_each(|batch| self.answer(batch, desk));
    }

    /// A partition is led in a later term, by another node: what its former leader has and was not answered may be asked
    /// again of the new one, if it takes effect but once.
    pub fn move_on(&mut self, lead: Lead) {
        let is_former = |asked: Lead| asked.partition == lead.partition && asked.term < lead.term;
        for passed in self.chunks.values_mut() {
            for (at, open) in &mut passed.open {
                let may_repeat = may_repeat(&passed.chunk.txns()[*at]);
                if may_repeat && open.asked.is_some_and(|(_, asked)| is_former(asked)) {
                    open.asked = None;
                }
            }
        }
    }

    /// Answers what has waited for a leader for too long: none has it.
    pub fn expire(&mut self, desk: &mut Desk<'_>) {
        let mut late: BTreeMap<GatewayId, OutcomeBatch> = BTreeMap::new();
        for passed in self.chunks.values() {
            if desk.elapsed().since(passed.since) > HOLD_FOR {
                for (at, _) in passed.open.iter().filter(|(_, open)| open.asked.is_none()) {
                    put(&mut late, &passed.chunk, &passed.chunk.txns()[*at], OutcomeStatus::Busy);
                }
            }
        }
        late.into_values().for_each(|batch| self.answer(batch, desk));
    }

    /// True if something waits for a leader.
    pub const fn waits(&self) -> bool {
        self.waits
    }

    /// The number of transactions that are not answered.
    pub fn open(&self) -> usize {
        self.chunks.values().map(|passed| passed.open.len()).sum()
    }

    /// Checks what must hold between two events.
    ///
    /// # Errors
    /// The first broken invariant.
    pub fn check(&self) -> Result<(), String> {
        match self.chunks.iter().find(|(_, passed)| passed.open.is_empty()) {
            Some(((gateway, chunk), _)) => {
                Err(format!("chunk {} of {gateway:?} is answered and kept", chunk.0))
            }
            None => Ok(()),
        }
    }
}

/// True if a transaction may be asked for twice.
fn may_repeat(txn: &Txn) -> bool {
    txn.read_only || txn.call.session.is_some()
}

fn put(batches: &mut BTreeMap<GatewayId, OutcomeBatch>, chunk: &Chunk, txn: &Txn, status: OutcomeStatus) {
    let batch = batches.entry(chunk.gateway).or_insert_with(|| OutcomeBatch::new(chunk.gateway));
    batch.push(chunk.number, txn.index, Effect { stamp: Stamp::NONE, token: Token::NOTHING }, status, |_| {});
}
