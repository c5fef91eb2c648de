//! The proxy of a database server: it knows how far the views of other regions are, and has those begin anew that are too far behind
//! (regions.md, sections 2 and 4.3).
//!
//! ```text
//!  storage nodes of a region ──Fetched──▶ StorageReader ──Sealed──▶ view (a Participant), Proxy
//!                                             ▲     └──Behind──▶ Proxy ──Want──▶ checkpointers of the storage nodes
//!                                             └──BeginAgain── view ◀──Come, Taken─▶ Proxy ◀──Part──┘
//! ```

use std::collections::BTreeMap;
use std::sync::Arc;

use ordain_model::{Epoch, Micros, Millis, PartitionId};
use ordain_replication::{Has, Log, Saving};
use ordain_role::{Address, ByRegion, Event, NodeId, Now, Outbox, PeerChange, PeerState, Role, TimerId};

use crate::entry::Entry;
use crate::family::{CHECKPOINTER, FOLLOWERS, PROXY, VIEWS};
use crate::figures::{
    PROXY_APPLIED, PROXY_AT, PROXY_BEHIND, PROXY_DAMAGED, PROXY_DELAY, PROXY_ENTRIES, PROXY_RESTORED,
};
use crate::message::{Message, Own};

const LOOK: TimerId = TimerId(1);
const LOOK_EVERY: Micros = Micros::from_millis(1_000);

/// A region that the node sees from elsewhere.
#[derive(Clone, Debug)]
pub struct Region {
    /// The region.
    pub region: PartitionId,
    /// Its storage nodes.
    pub storage: Vec<NodeId>,
}

/// See the module.
#[derive(Debug)]
pub struct Proxy {
    node: NodeId,
    views: BTreeMap<PartitionId, View>,
    /// Messages that nobody was to send.
    strangers: u64,
}

/// The state of a view, as far as the proxy knows it.
#[derive(Debug)]
struct View {
    storage: Vec<NodeId>,
    /// The last entry that the view has been given, and its time.
    applied: Epoch,
    at: Millis,
    /// The time that the entry took, by the clocks of the two servers.
    delay: Millis,
    /// The view needs a checkpoint of this place or a later one.
    needs: Option<Epoch>,
    /// The storage node that is asked for it.
    turn: usize,
    copying: Option<Copying>,
    entries: u64,
    restored: u64,
    damaged: u64,
}

/// A checkpoint that is being got.
#[derive(Debug)]
struct Copying {
    epoch: Epoch,
    /// The bytes that the view has taken.
    through: u64,
    /// The place behind what the view has been given, if it has not answered.
    given: Option<u64>,
    /// Something of it has come since the last look.
    is_moving: bool,
}

impl Copying {
    const fn of(epoch: Epoch) -> Copying {
        Copying { epoch, through: 0, given: None, is_moving: true }
    }
}

/// The next bytes of a checkpoint, on their way to the view that begins with it.
#[derive(Clone, Debug)]
pub struct Come {
    /// Its place.
    pub epoch: Epoch,
    /// The place of the bytes in the file.
    pub offset: u64,
    /// The bytes.
    pub bytes: Arc<Vec<u8>>,
    /// Nothing follows.
    pub is_last: bool,
    /// The role that is answered.
    pub proxy: Address,
}

/// The answer of a view that was given bytes of a checkpoint.
#[derive(Clone, Debug)]
pub struct Taken {
    /// The place of the checkpoint.
    pub epoch: Epoch,
    /// The place in the file behind the bytes.
    pub through: u64,
    /// What has come of them.
    pub progress: Progress,
}

/// How far a view has come with a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It waits for more.
    More,
    /// It shows the checkpoint, or something later.
    All,
    /// The checkpoint is damaged, or is another one than it should be.
    Unfit(String),
}

impl Proxy {
    /// The proxy of a node that sees these regions.
    pub fn new(node: NodeId, regions: Vec<Region>) -> Proxy {
        let view = |storage| View {
            storage,
            applied: Epoch(0),
            at: Millis(0),
            delay: Millis(0),
            needs: None,
            turn: usize::from(node.0),
            copying: None,
            entries: 0,
            restored: 0,
            damaged: 0,
        };
        let views = regions.into_iter().map(|of| (of.region, view(of.storage))).collect();
        Proxy { node, views, strangers: 0 }
    }

    const fn at(&self, role: u16) -> Address {
        Address { node: self.node, role }
    }

    /// The region whose log a role of this node reads.
    fn read_by(&self, from: Address) -> Option<PartitionId> {
        let region = from.role.checked_sub(FOLLOWERS).filter(|_| from.node == self.node)?;
        Some(PartitionId(region)).filter(|region| self.views.contains_key(region))
    }

    fn take_log(&mut self, wall: Micros, from: Address, message: Log<Arc<Entry>>, out: &mut Outbox<Message>) {
        let region = self.read_by(from);
        let Some((region, view)) = region.and_then(|region| Some((region, self.views.get_mut(&region)?)))
        else {
            self.strangers += 1;
            return;
        };
        match message {
            Log::Sealed(entry) => {
                view.applied = entry.place;
                view.at = view.at.max(entry.now);
                view.delay = Millis((wall.0 / 1_000).saturating_sub(entry.now.0));
                view.entries += 1;
            }
            Log::Behind(epoch) => {
                view.needs = view.needs.max(Some(epoch));
                self.look(region, out);
            }
            message => out.halt(format!("a proxy was sent a message that is not for it: {message:?}")),
        }
    }

    /// Asks the next storage node of a region for a checkpoint, if its view needs one and none is on its way.
    fn look(&mut self, region: PartitionId, out: &mut Outbox<Message>) {
        let Some(view) = self.views.get_mut(&region) else { return };
        let Some(epoch) = view.needs else { return };
        if let Some(copying) = &mut view.copying
            && std::mem::take(&mut copying.is_moving)
        {
            return;
        }
        view.copying = None;
        view.turn = (view.turn + 1) % view.storage.len();
        let to = Address { node: view.storage[view.turn], role: CHECKPOINTER };
        // A storage node without the checkpoint of that epoch answers with the epoch of the one that it has.
        out.send(to, Saving::Want { epoch, offset: 0 });
    }

    fn take_saving(&mut self, from: Address, message: Saving, out: &mut Outbox<Message>) {
        let its = self.views.iter_mut().find(|(_, view)| view.storage.get(view.turn) == Some(&from.node));
        let Some((region, view)) = its.filter(|_| from.role == CHECKPOINTER) else {
            // An answer that came late.
            return;
        };
        let Some(needs) = view.needs else { return };
        match message {
            Saving::Has(Has { complete: epoch, .. }) if epoch >= needs && view.copying.is_none() => {
                view.copying = Some(Copying::of(epoch));
                out.send(from, Saving::Want { epoch, offset: 0 });
            }
            Saving::Gone(epoch) => _ = view.copying.take_if(|copying| copying.epoch == epoch),
            Saving::Part { epoch, offset, bytes, is_last, .. } => {
                let copying = view.copying.get_or_insert(Copying::of(epoch));
                if (copying.epoch, copying.through) != (epoch, offset) || copying.given.is_some() {
                    return;
                }
                (copying.is_moving, copying.given) = (true, Some(offset + bytes.len() as u64));
                let to = VIEWS + region.0;
                let bytes = Arc::new(bytes);
                let come = Come { epoch, offset, bytes, is_last, proxy: self.at(PROXY) };
                out.send(self.at(to), Own::Come(come));
            }
            _ => {}
        }
    }

    /// A view has taken bytes of a checkpoint, or has found that it cannot use it: then another storage node is asked for one next.
    fn taken(&mut self, from: Address, Taken { epoch, through, progress }: Taken, out: &mut Outbox<Message>) {
        let region = from.role.checked_sub(VIEWS).filter(|_| from.node == self.node).map(PartitionId);
        let Some(view) = region.and_then(|region| self.views.get_mut(&region)) else {
            self.strangers += 1;
            return;
        };
        let its = |copying: &&mut Copying| (copying.epoch, copying.given) == (epoch, Some(through));
        // An answer to what was given up since is of no use.
        let Some(copying) = view.copying.as_mut().filter(its) else { return };
        match progress {
            Progress::More => {
                *copying = Copying { through, ..Copying::of(epoch) };
                let to = Address { node: view.storage[view.turn], role: CHECKPOINTER };
                out.send(to, Saving::Want { epoch, offset: through });
            }
            Progress::All => {
                (view.needs, view.copying) = (None, None);
                view.restored += 1;
                view.applied = view.applied.max(epoch);
            }
            Progress::Unfit(_) => {
                view.copying = None;
                view.damaged += 1;
            }
        }
    }

    fn peer(&mut self, PeerChange { node, state }: PeerChange, out: &mut Outbox<Message>) {
        let its = |(_, view): &(&PartitionId, &View)| view.storage.get(view.turn) == Some(&node);
        let regions: Vec<PartitionId> = self.views.iter().filter(its).map(|(region, _)| *region).collect();
        if state != PeerState::Back {
            for region in regions {
                self.views.get_mut(&region).into_iter().for_each(|view| view.copying = None);
                self.look(region, out);
            }
        }
    }
}

impl Role for Proxy {
    type Message = Message;

    fn handle(&mut self, now: Now, event: Event<Message>, out: &mut Outbox<Message>) {
        match event {
            Event::Start => out.set_timer(LOOK, LOOK_EVERY),
            Event::Timer(_) => {
                let all: Vec<PartitionId> = self.views.keys().copied().collect();
                all.into_iter().for_each(|region| self.look(region, out));
                out.set_timer(LOOK, LOOK_EVERY);
            }
            Event::Message { from, message } => match message {
                Message::Log(message) => self.take_log(now.wall, from, message, out),
                Message::Saving(message) => self.take_saving(from, message, out),
                Message::Peer(change) => self.peer(change, out),
                Message::Own(Own::Taken(taken)) => self.taken(from, taken, out),
                message => out.halt(format!("a proxy was sent a message that is not for it: {message:?}")),
            },
            Event::Disk(_) | Event::Work(_) | Event::Stop => {}
        }
    }

    fn name(&self) -> &'static str {
        "proxy"
    }

    fn check(&self) -> Result<(), String> {
        match self.views.iter().find(|(_, view)| view.copying.is_some() && view.needs.is_none()) {
            Some((region, _)) => Err(format!("a checkpoint of region {} is got that nobody needs", region.0)),
            None => Ok(()),
        }
    }

    fn gauges(&self, report: &mut dyn FnMut(&'static str, f64)) {
        for (region, view) in &self.views {
            let mut of = |series: &ByRegion, value| {
                series.get(usize::from(region.0)).into_iter().for_each(|name| report(name, value));
            };
            of(&PROXY_APPLIED, view.applied.0 as f64);
            of(&PROXY_AT, view.at.0 as f64 / 1e3);
            of(&PROXY_DELAY, view.delay.0 as f64 / 1e3);
            of(&PROXY_BEHIND, f64::from(u8::from(view.needs.is_some())));
            of(&PROXY_ENTRIES, view.entries as f64);
            of(&PROXY_RESTORED, view.restored as f64);
            of(&PROXY_DAMAGED, view.damaged as f64);
        }
        report("ordain_proxy_strangers_total", self.strangers as f64);
    }
}

#[cfg(test)]
mod tests {
    use ordain_checkpoint::{Encoder, Header};
    use ordain_model::Layout;

    use super::*;
    use crate::entry::Content;
    use crate::ids::Term;

    const REGION: PartitionId = PartitionId(1);

    struct Hand(Proxy);

    impl Hand {
        /// The proxy of node 0, beside a region whose storage nodes are 3 and 5.
        fn new() -> Hand {
            let storage = vec![NodeId(3), NodeId(5)];
            Hand(Proxy::new(NodeId(0), vec![Region { region: REGION, storage }]))
        }

        fn tell(&mut self, event: Event<Message>) -> Vec<(Address, Message)> {
            let mut out = Outbox::default();
            self.0.handle(Now::default(), event, &mut out);
            assert_eq!(out.halt, None);
            self.0.check().unwrap();
            out.sends
        }

        fn says(&mut self, from: Address, message: impl Into<Message>) -> Vec<(Address, Message)> {
            self.tell(Event::Message { from, message: message.into() })
        }
    }

    impl Hand {
        /// The view has taken what there is up to a place.
        fn takes(&mut self, epoch: u64, through: usize, progress: Progress) -> Vec<(Address, Message)> {
            let view = Address { node: NodeId(0), role: VIEWS + REGION.0 };
            let (epoch, through) = (Epoch(epoch), through as u64);
            self.says(view, Message::Own(Own::Taken(Taken { epoch, through, progress })))
        }
    }

    fn reader() -> Address {
        Address { node: NodeId(0), role: FOLLOWERS + REGION.0 }
    }

    fn storage(node: u16) -> Address {
        Address { node: NodeId(node), role: CHECKPOINTER }
    }

    /// Asked for: of whom, and from where on.
    fn asked(sends: &[(Address, Message)]) -> Vec<(u16, u64, u64)> {
        let wants = sends.iter().filter_map(|(to, message)| match message {
            Message::Saving(Saving::Want { epoch, offset }) => Some((to.node.0, epoch.0, *offset)),
            _ => None,
        });
        wants.collect()
    }

    /// What the view is given: of which checkpoint, from where on, and whether that is the end.
    fn come(sends: &[(Address, Message)]) -> Option<(Epoch, u64, Vec<u8>, bool)> {
        let [(to, Message::Own(Own::Come(come)))] = sends else { return None };
        assert_eq!((to.role, come.proxy.role), (VIEWS + REGION.0, PROXY));
        Some((come.epoch, come.offset, come.bytes.to_vec(), come.is_last))
    }

    /// A checkpoint of the region without any record.
    fn file(epoch: Epoch) -> Vec<u8> {
        let layout = Layout::even(2, 1).unwrap();
        let (encoder, head) = Encoder::begin(&Header::new(b"test", &layout, REGION, epoch));
        let (end, _) = encoder.end();
        [head].into_iter().chain(end).flatten().collect()
    }

    fn part(epoch: Epoch, offset: u64, bytes: &[u8], is_last: bool) -> Saving {
        Saving::Part { epoch, at: Millis(1), offset, bytes: bytes.to_vec(), is_last }
    }

    #[test]
    fn a_view_that_is_too_far_behind_gets_a_checkpoint_piece_by_piece() {
        let mut hand = Hand::new();
        assert_eq!(asked(&hand.says(reader(), Log::<Arc<Entry>>::Behind(Epoch(10)))), [(5, 10, 0)]);
        // It has a later one.
        assert_eq!(asked(&hand.says(storage(5), Saving::Gone(Epoch(10)))), []);
        let has = |complete| Saving::Has(Has { saved: Epoch(complete), complete: Epoch(complete) });
        assert_eq!(asked(&hand.says(storage(5), has(8))), [], "that is too old");
        assert_eq!(asked(&hand.says(storage(3), has(12))), [], "it was not asked");
        assert_eq!(asked(&hand.says(storage(5), has(12))), [(5, 12, 0)]);
        let bytes = file(Epoch(12));
        let (head, tail) = bytes.split_at(20);
        let sends = hand.says(storage(5), part(Epoch(12), 0, head, false));
        assert_eq!((asked(&sends), come(&sends)), (vec![], Some((Epoch(12), 0, head.to_vec(), false))));
        let again = hand.says(storage(5), part(Epoch(12), 0, head, false));
        assert!(again.is_empty(), "the view has it, and has not answered");
        assert_eq!(asked(&hand.takes(12, 20, Progress::More)), [(5, 12, 20)]);
        assert_eq!(
            asked(&hand.says(storage(5), part(Epoch(12), 0, head, false))),
            [],
            "that was here before"
        );
        let sends = hand.says(storage(5), part(Epoch(12), 20, tail, true));
        assert_eq!(come(&sends), Some((Epoch(12), 20, tail.to_vec(), true)));
        assert_eq!(asked(&hand.takes(12, 20, Progress::All)), [], "that was of what came before");
        assert_eq!(asked(&hand.tell(Event::Timer(LOOK))), []);
        assert_eq!(asked(&hand.takes(12, bytes.len(), Progress::All)), []);
        assert_eq!(asked(&hand.tell(Event::Timer(LOOK))), [], "nothing is needed any more");
    }

    #[test]
    fn a_damaged_checkpoint_and_a_lost_node_make_the_next_one_be_asked() {
        let mut hand = Hand::new();
        assert_eq!(asked(&hand.says(reader(), Log::<Arc<Entry>>::Behind(Epoch(10)))), [(5, 10, 0)]);
        let bytes = file(Epoch(10));
        assert!(come(&hand.says(storage(5), part(Epoch(10), 0, &bytes, true))).is_some());
        let damaged = Progress::Unfit("it is damaged".to_owned());
        assert_eq!(asked(&hand.takes(10, bytes.len(), damaged)), [], "the next one is asked after a while");
        assert_eq!(asked(&hand.tell(Event::Timer(LOOK))), [(3, 10, 0)]);
        let lost = PeerChange { node: NodeId(3), state: PeerState::Lost };
        assert_eq!(
            asked(&hand.tell(Event::Message { from: storage(0), message: lost.into() })),
            [(5, 10, 0)]
        );
    }

    #[test]
    fn entries_tell_how_far_a_view_is() {
        let mut hand = Hand::new();
        let (place, now) = (Epoch(7), Millis(1_234));
        let entry = Entry { place, term: Term(1), now, content: Content::Begin, agreed: None };
        assert!(hand.says(reader(), Log::Sealed(Arc::new(entry))).is_empty());
        let mut seen = BTreeMap::new();
        hand.0.gauges(&mut |name, value| _ = seen.insert(name, value));
        let of_region = |series: ByRegion| seen[series[usize::from(REGION.0)]];
        assert_eq!(
            (of_region(PROXY_ENTRIES), of_region(PROXY_AT), of_region(PROXY_APPLIED)),
            (1.0, 1.234, 7.0)
        );
    }
}
