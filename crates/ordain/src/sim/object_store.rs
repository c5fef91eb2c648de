//! An object store in virtual time, and the companions of nodes that take checkpoints there.
//!
//! A request takes a while, and takes effect at some moment of it; it may fail without having taken effect, or although it has.
//! An upload that is cut off leaves nothing behind. A list may be of a moment that has passed. What a node sent before it lost
//! power may still arrive. All of it is drawn from the seed.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::future::{Future, poll_fn};
use std::io::Read;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use ordain_archive::archive::Object;
use ordain_archive::work::{Content, Machine, Store, Work, is_sound};
use ordain_archive::{ArchiveError, Kind, Name, Owner, Reader, Rules, Standing};
use ordain_checkpoint::{Found, Header, file_name, list};
use ordain_family::{NodeSettings, Replication};
use ordain_model::{Epoch, Micros, Millis, Random};
use ordain_role::{Directory, NodeId, Now};
use ordain_sim::Companion;

/// The time for which lists may show what was.
const STALE: Micros = Micros::from_millis(50);

/// The store. A clone is another way to the same one.
#[derive(Clone)]
pub(super) struct VirtualStore(Rc<RefCell<Objects>>);

/// A change of the objects: by name, what is there from now on.
type Change = (String, Option<Rc<[u8]>>);

struct Objects {
    random: Random,
    /// Chances per million that a request fails before it has taken effect, and after.
    failures: [u32; 2],
    /// Chance per million that a request takes a hundred times as long.
    slow: u32,
    /// Chance per million that a list is of a moment that has passed.
    stale: u32,
    objects: BTreeMap<String, Rc<[u8]>>,
    /// Changes that are on the way, by the time at which they take effect.
    coming: BTreeMap<(Micros, u64), Change>,
    /// How the objects were called and how long they were, each from that time on; the newest is last.
    past: VecDeque<(Micros, BTreeMap<String, u64>)>,
    requests: u64,
    counts: StoreCounts,
    /// How many partitions there are, and whether each replica's checkpoints are its own.
    shape: (usize, bool),
    /// There was a checkpoint that could be restored.
    was_whole: bool,
}

/// What has happened at a store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StoreCounts {
    /// Checkpoints that were uploaded and sealed.
    pub(super) sealed: u32,
    /// Requests that failed.
    pub(super) failed: u32,
    /// Lists of a moment that had passed.
    pub(super) stale: u32,
    /// Objects that were removed.
    pub(super) removed: u32,
}

/// A request that an archiver waits for.
enum Request {
    Look,
    Check(Header),
    Open(Epoch),
    Pause(Duration),
    List(String),
    Put(String, Vec<u8>),
    Upload(String, Vec<u8>),
    Remove(String),
}

enum Answer {
    Found(Result<Vec<Found>, ArchiveError>),
    Sound(bool),
    Content(Result<Option<Vec<u8>>, ArchiveError>),
    Listed(Result<(Vec<Object>, Vec<String>), ArchiveError>),
    Done(Result<(), ArchiveError>),
    Paused,
}

fn failed(what: &str, name: &str) -> ArchiveError {
    ArchiveError::Store { what: format!("{what} {name}"), reason: "the virtual store fails".to_owned() }
}

/// The last parts of the names right below a place, and the places below it.
fn below<'n>(names: impl Iterator<Item = (&'n String, u64)>, under: &str) -> (Vec<Object>, Vec<String>) {
    let (mut objects, mut places) = (Vec::new(), BTreeSet::new());
    let prefix = if under.is_empty() { String::new() } else { format!("{under}/") };
    for (name, bytes) in names {
        match name.strip_prefix(&prefix).map(|rest| (rest.split_once('/'), rest)) {
            Some((Some((place, _)), _)) => _ = places.insert(place.to_owned()),
            Some((None, last)) => objects.push(Object { name: last.to_owned(), bytes }),
            None => {}
        }
    }
    (objects, places.into_iter().collect())
}

impl Objects {
    /// Lets what is on the way take effect up to a time.
    fn settle(&mut self, now: Micros) {
        while let Some(first) = self.coming.first_entry().filter(|first| first.key().0 <= now) {
            let at = first.key().0;
            let (name, content) = first.remove();
            let is_seal = name.ends_with(".seal");
            match content {
                Some(content) => {
                    self.counts.sealed += u32::from(is_seal);
                    self.objects.insert(name, content);
                }
                None => self.counts.removed += u32::from(self.objects.remove(&name).is_some()),
            }
            let names = self.objects.iter().map(|(name, content)| (name.clone(), content.len() as u64));
            self.past.push_back((at, names.collect()));
            self.was_whole |= is_seal && !self.whole().is_empty();
        }
        while self.past.get(1).is_some_and(|(at, _)| at.plus(STALE) < now) {
            self.past.pop_front();
        }
    }

    /// The epochs of which all partitions have a seal and its state, where replicas do not agree from one replica.
    fn whole(&self) -> BTreeSet<Epoch> {
        let (partitions, is_by_replica) = self.shape;
        let mut holders: BTreeMap<(usize, Epoch), BTreeSet<String>> = BTreeMap::new();
        for path in self.objects.keys().filter(|path| path.ends_with(".seal")) {
            let Some((place, name)) = path.rsplit_once('/') else { continue };
            let Some(name) = Name::parse(name) else { continue };
            if self.objects.contains_key(&format!("{place}/{}", name.with(Kind::State))) {
                let replica = if is_by_replica { usize::from(name.node.0) / partitions } else { 0 };
                holders.entry((replica, name.epoch)).or_default().insert(place.to_owned());
            }
        }
        let whole = holders.into_iter().filter(|(_, held)| held.len() == partitions);
        whole.map(|((_, epoch), _)| epoch).collect()
    }

    /// Begins a request to the store: how long it takes, the answer, and what takes effect with that alone.
    fn begin(&mut self, now: Micros, request: Request) -> (Micros, Answer, Option<Change>) {
        let slow = if self.random.chance(self.slow) { 100 } else { 1 };
        let takes = Micros((100 + self.random.tail(2_000)) * slow);
        let takes_effect = now.plus(Micros(self.random.between(1, takes.0)));
        let fails = self.failures.map(|chance| self.random.chance(chance));
        self.counts.failed += u32::from(fails != [false, false]);
        self.requests += 1;
        let key = (takes_effect, self.requests);
        let done = |what: &str, name: &str| {
            Answer::Done(if fails == [false, false] { Ok(()) } else { Err(failed(what, name)) })
        };
        let answer = match request {
            // A node that loses power has not sent the last part.
            Request::Upload(name, bytes) => {
                let answer = done("write", &name);
                return (takes, answer, (!fails[0]).then(|| (name, Some(Rc::from(bytes)))));
            }
            Request::Put(name, bytes) => {
                let answer = done("write", &name);
                if !fails[0] {
                    self.coming.insert(key, (name, Some(Rc::from(bytes))));
                }
                answer
            }
            Request::Remove(name) => {
                let answer = done("remove", &name);
                if !fails[0] {
                    self.coming.insert(key, (name, None));
                }
                answer
            }
            Request::List(under) if fails[0] => Answer::Listed(Err(failed("list", &under))),
            Request::List(under) => {
                let is_stale = self.random.chance(self.stale) && !self.past.is_empty();
                self.counts.stale += u32::from(is_stale);
                let then = is_stale.then(|| self.random.index(self.past.len()));
                Answer::Listed(Ok(match then.and_then(|then| self.past.get(then)) {
                    Some((_, names)) => below(names.iter().map(|(name, len)| (name, *len)), &under),
                    None => self.now(&under),
                }))
            }
            Request::Look | Request::Check(_) | Request::Open(_) | Request::Pause(_) => Answer::Paused,
        };
        (takes, answer, None)
    }

    fn now(&self, under: &str) -> (Vec<Object>, Vec<String>) {
        below(self.objects.iter().map(|(name, content)| (name, content.len() as u64)), under)
    }
}

impl VirtualStore {
    /// An empty store, as troublesome as the seed has it if `fails`.
    pub(super) fn new(seed: u64, (partitions, is_by_replica): (usize, bool), fails: bool) -> VirtualStore {
        let mut random = Random::stream(seed, 0x5704e);
        let mut chance =
            |most: u64| if fails && random.chance(700_000) { random.below(most) as u32 } else { 0 };
        let (failures, slow, stale) = ([chance(200_000), chance(100_000)], chance(100_000), chance(500_000));
        VirtualStore(Rc::new(RefCell::new(Objects {
            random,
            failures,
            slow,
            stale,
            objects: BTreeMap::new(),
            coming: BTreeMap::new(),
            past: VecDeque::new(),
            requests: 0,
            counts: StoreCounts::default(),
            shape: (partitions, is_by_replica),
            was_whole: false,
        })))
    }

    /// Lets all that is on the way arrive.
    pub(super) fn rest(&self) {
        self.0.borrow_mut().settle(Micros(u64::MAX));
    }

    /// What has happened.
    pub(super) fn counts(&self) -> StoreCounts {
        self.0.borrow().counts
    }

    /// True if there ever was a checkpoint that all partitions had: from then on there must be one.
    pub(super) fn was_whole(&self) -> bool {
        self.0.borrow().was_whole
    }

    /// The epochs of which all partitions have a checkpoint.
    pub(super) fn whole(&self) -> BTreeSet<Epoch> {
        self.0.borrow().whole()
    }

    /// Removes every seal.
    #[cfg(test)]
    pub(super) fn remove_seals(&self) {
        self.0.borrow_mut().objects.retain(|name, _| !name.ends_with(".seal"));
    }

    /// A companion that takes the checkpoints of a node to the store.
    pub(super) fn archiver(&self, rules: Rules) -> Box<dyn Companion> {
        let (channel, clock) = (Rc::<Channel>::default(), Rc::<Cell<Millis>>::default());
        let machine = VirtualMachine { channel: channel.clone(), clock: clock.clone() };
        let store = (Remote(channel.clone()), "the virtual store".to_owned());
        let work = Work::new(rules, machine, store, Standing::default()).run();
        Box::new(VirtualArchiver {
            work: Box::pin(work),
            channel,
            clock,
            store: self.clone(),
            asked: Asked::Nothing,
        })
    }
}

impl Reader for VirtualStore {
    fn list(&self, under: &str) -> Result<(Vec<Object>, Vec<String>), ArchiveError> {
        Ok(self.0.borrow().now(under))
    }

    fn read(&self, name: &str, offset: u64, len: u64) -> Result<Vec<u8>, ArchiveError> {
        let content = self.get(name)?;
        let end = offset.saturating_add(len).min(content.len() as u64) as usize;
        content.get(offset as usize..end).map(<[u8]>::to_vec).ok_or_else(|| failed("read", name))
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, ArchiveError> {
        self.0.borrow().objects.get(name).map(|content| content.to_vec()).ok_or_else(|| failed("read", name))
    }
}

/// The way between an archiver's work and the companion that drives it: one request at a time.
#[derive(Default)]
struct Channel {
    request: RefCell<Option<Request>>,
    answer: RefCell<Option<Answer>>,
}

impl Channel {
    async fn ask(&self, request: Request) -> Answer {
        *self.request.borrow_mut() = Some(request);
        poll_fn(|_| self.answer.borrow_mut().take().map_or(Poll::Pending, Poll::Ready)).await
    }

    async fn change(&self, request: Request) -> Result<(), ArchiveError> {
        match self.ask(request).await {
            Answer::Done(done) => done,
            _ => Err(ArchiveError::Local("an answer to something else".to_owned())),
        }
    }
}

struct VirtualMachine {
    channel: Rc<Channel>,
    clock: Rc<Cell<Millis>>,
}

impl Machine for VirtualMachine {
    async fn look(&self) -> Result<Vec<Found>, ArchiveError> {
        match self.channel.ask(Request::Look).await {
            Answer::Found(found) => found,
            _ => Ok(Vec::new()),
        }
    }

    async fn is_sound(&self, expected: Header) -> bool {
        matches!(self.channel.ask(Request::Check(expected)).await, Answer::Sound(true))
    }

    async fn open(&self, epoch: Epoch) -> Result<Option<Content>, ArchiveError> {
        match self.channel.ask(Request::Open(epoch)).await {
            Answer::Content(content) => content.map(|bytes| {
                bytes.map(|bytes| {
                    let len = bytes.len() as u64;
                    Content::new(std::io::Cursor::new(bytes), len)
                })
            }),
            _ => Ok(None),
        }
    }

    fn now(&self) -> Millis {
        self.clock.get()
    }

    async fn pause(&self, lasts: Duration) {
        self.channel.ask(Request::Pause(lasts)).await;
    }
}

struct Remote(Rc<Channel>);

impl Store for Remote {
    async fn list(&self, under: &str) -> Result<(Vec<Object>, Vec<String>), ArchiveError> {
        match self.0.ask(Request::List(under.to_owned())).await {
            Answer::Listed(listed) => listed,
            _ => Err(failed("list", under)),
        }
    }

    async fn put(&self, name: &str, bytes: Vec<u8>) -> Result<(), ArchiveError> {
        self.0.change(Request::Put(name.to_owned(), bytes)).await
    }

    async fn upload(&self, name: &str, mut content: Content) -> Result<u64, ArchiveError> {
        let mut bytes = Vec::new();
        content.read_to_end(&mut bytes).map_err(|error| ArchiveError::Local(error.to_string()))?;
        let len = bytes.len() as u64;
        self.0.change(Request::Upload(name.to_owned(), bytes)).await.map(|()| len)
    }

    async fn remove(&self, name: &str) -> Result<(), ArchiveError> {
        self.0.change(Request::Remove(name.to_owned())).await
    }
}

/// A request that is under way.
enum Asked {
    Nothing,
    /// One of the node's own directory.
    Local(Request),
    /// One whose answer is known, and what takes effect with that.
    Known(Answer, Option<Change>),
}

/// The companion of a node: the product's archiver in virtual time.
struct VirtualArchiver {
    work: Pin<Box<dyn Future<Output = ()>>>,
    channel: Rc<Channel>,
    clock: Rc<Cell<Millis>>,
    store: VirtualStore,
    /// The request that is under way.
    asked: Asked,
}

impl VirtualArchiver {
    /// The answer to a request of the node's own directory.
    fn local(request: &Request, disk: &dyn Directory) -> Answer {
        let local = |error: ordain_role::DiskError| ArchiveError::Local(error.to_string());
        match request {
            Request::Look => Answer::Found(list(disk).map_err(local)),
            Request::Check(expected) => Answer::Sound(is_sound(disk, expected, || false)),
            Request::Open(epoch) => {
                let file = file_name(*epoch);
                let len = disk.list().map(|files| files.into_iter().find(|(name, _)| *name == file));
                Answer::Content(len.map_err(local).and_then(|found| {
                    let read = found.map(|(_, len)| disk.read(&file, 0, len as usize));
                    read.transpose().map_err(local)
                }))
            }
            _ => Answer::Paused,
        }
    }
}

impl Companion for VirtualArchiver {
    fn go_on(&mut self, at: Micros, clock: Now, disk: &dyn Directory) -> Micros {
        self.clock.set(Millis(clock.wall.0 / 1_000));
        let answer = match std::mem::replace(&mut self.asked, Asked::Nothing) {
            Asked::Nothing => None,
            Asked::Local(request) => Some(VirtualArchiver::local(&request, disk)),
            Asked::Known(answer, change) => {
                let mut objects = self.store.0.borrow_mut();
                objects.requests += 1;
                let key = (at, objects.requests);
                change.map(|change| objects.coming.insert(key, change));
                Some(answer)
            }
        };
        self.store.0.borrow_mut().settle(at);
        *self.channel.answer.borrow_mut() = answer;
        let mut context = Context::from_waker(Waker::noop());
        // It never ends.
        let _ = self.work.as_mut().poll(&mut context);
        let Some(request) = self.channel.request.borrow_mut().take() else { return Micros(1_000) };
        let mut objects = self.store.0.borrow_mut();
        match request {
            Request::Pause(lasts) => {
                self.asked = Asked::Known(Answer::Paused, None);
                Micros(lasts.as_micros() as u64)
            }
            Request::Look | Request::Check(_) | Request::Open(_) => {
                self.asked = Asked::Local(request);
                Micros(1 + objects.random.tail(500))
            }
            remote => {
                let (takes, answer, change) = objects.begin(at, remote);
                self.asked = Asked::Known(answer, change);
                takes
            }
        }
    }
}

/// The rules of a node's archiver in a cluster under simulation: so hasty that a run of a second has much of it.
pub(super) fn hasty(cluster: &str, settings: &NodeSettings, node: NodeId, seed: u64) -> Rules {
    let millis = Duration::from_millis;
    let topology = &settings.topology;
    let (partition, replica) = (topology.partition_of(node), u64::from(topology.replica_of(node).0));
    let owner = Owner {
        cluster: cluster.to_owned(),
        alone: false,
        engine: settings.options.engine().to_string(),
        layout: topology.layout.version(),
        starts: topology.layout.starts().to_vec(),
        regions: topology.layout.placement().texts(),
        partition: partition.0,
        replication: settings.replication().name().to_owned(),
    };
    // Where primaries may change, a replica's checkpoints are its own.
    let is_shared = settings.replication() != Replication::Async;
    Rules {
        node,
        owner,
        header: Header::new(&settings.identity, &topology.layout, partition, Epoch(0)),
        keep: 1 + seed as usize % 3,
        patience: is_shared.then(|| millis([0, 2, 20][seed as usize / 3 % 3] * replica)),
        pace: millis(1 + seed % 7),
        wait: millis(1 + seed % 5),
    }
}
