//! An operator in simulated clusters: transactions end the process that executes them, and what was under way then is
//! aborted by its place in the order.
//!
//! A step of the simulator is not interrupted, so a transaction that ends its node reads at once the places of all
//! shards: only the shard that executes it has something there.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ordain_model::layout::MAX_SHARDS;
use ordain_model::{Epoch, Gsn, KeyHash, Registry};
use ordain_node::aborts::{Aborts, FILE};
use ordain_role::{Bytes, Directory, DiskOp, NodeId, UnderWay};
use ordain_sim::workload::procedures::register_fatal;

/// The places in the order that a shard executes, that is executed for it elsewhere, and that it has executed last.
type Place = [AtomicU64; 3];

/// The transactions under way on all nodes, and those that have ended nodes.
pub struct Operator {
    seed: u64,
    /// By node and shard.
    places: Vec<&'static [Place]>,
    /// The transactions that have ended nodes since the last inspection.
    culprits: Arc<Mutex<BTreeSet<Gsn>>>,
    has_ended: Arc<Mutex<bool>>,
    /// After which epoch each node goes on that has begun with a checkpoint.
    begun: Vec<Epoch>,
    pub aborted: BTreeSet<Gsn>,
}

fn lock<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Operator {
    /// An operator of so many nodes; adds the procedure that ends them.
    pub fn new(seed: u64, nodes: usize, registry: &mut Registry) -> Operator {
        // Places of shards live as long as the process; a run has a few kilobytes of them.
        let of_node = || -> &'static [Place] {
            let places: Vec<Place> = (0..MAX_SHARDS).map(|_| Place::default()).collect();
            Vec::leak(places)
        };
        let places: Vec<&'static [Place]> = (0..nodes).map(|_| of_node()).collect();
        let (culprits, has_ended) = (Arc::<Mutex<BTreeSet<Gsn>>>::default(), Arc::<Mutex<bool>>::default());
        let (found, ended, all) = (culprits.clone(), has_ended.clone(), places.clone());
        register_fatal(registry, move || {
            let words = all.iter().flat_map(|places| places.iter()).flat_map(|place| &place[..2]);
            let numbers = words.map(|word| word.load(Ordering::Relaxed)).filter(|number| *number != 0);
            lock(&found).extend(numbers.map(|number| Gsn(number).plain()));
            *lock(&ended) = true;
        });
        Operator { seed, places, culprits, has_ended, begun: vec![Epoch(0); nodes], aborted: BTreeSet::new() }
    }

    /// The places of the shards of a node that starts, which has executed nothing.
    pub fn under_way(&self, node: NodeId) -> Vec<UnderWay> {
        let places = self.places[usize::from(node.0)];
        places.iter().map(|[own, work, latest]| UnderWay::at(own, work).keeping(latest)).collect()
    }

    /// A node starts.
    pub fn starts(&self, node: NodeId) {
        for word in self.places[usize::from(node.0)].iter().flatten() {
            word.store(0, Ordering::Relaxed);
        }
    }

    /// A node has started, and goes on after a checkpoint.
    pub fn begins(&mut self, node: NodeId, begun: Epoch) {
        self.under_way(node).iter().for_each(|place| [*place, place.of_work()].iter().for_each(|p| p.end()));
        self.begun[usize::from(node.0)] = begun;
    }

    pub fn has_ended(&mut self) -> bool {
        std::mem::take(&mut *lock(&self.has_ended))
    }

    /// Takes the transactions that have ended nodes since the last inspection.
    pub fn culprits(&mut self) -> Vec<Gsn> {
        std::mem::take(&mut *lock(&self.culprits)).into_iter().collect()
    }

    /// True if a node has executed transactions of an epoch or later ones.
    fn is_past(&self, node: NodeId, epoch: Epoch) -> bool {
        let latest = self.under_way(node).iter().map(|place| Gsn(place.latest()).epoch()).max();
        epoch <= latest.unwrap_or_default().max(self.begun[usize::from(node.0)])
    }

    pub fn greeting(disk: &dyn Directory) -> Vec<u8> {
        Aborts::of(disk).map(|aborts| aborts.greeting()).unwrap_or_default()
    }

    /// Takes over the aborts in another node's greeting. False if there is none that this one has yet to come to.
    pub fn heed(&self, node: NodeId, words: &[u8], disk: &mut dyn Directory) -> bool {
        let taken = Aborts::of(disk).map_err(|error| error.to_string()).and_then(|mut aborts| {
            let taken = aborts.take(words, |epoch| self.is_past(node, epoch)).map_err(|e| e.to_string())?;
            if taken.is_empty() { Ok(false) } else { write(&mut aborts, disk).map(|()| true) }
        });
        // A node that cannot write them down stops, and is greeted again.
        taken.unwrap_or(true)
    }

    /// The aborts on one disk that the node of another one would take over.
    pub fn unheard(&self, known: &dyn Directory, of: NodeId, disk: &dyn Directory) -> Vec<Gsn> {
        let words = Operator::greeting(known);
        let own = Aborts::of(disk).ok().filter(|_| !words.is_empty());
        own.and_then(|mut own| own.take(&words, |epoch| self.is_past(of, epoch)).ok()).unwrap_or_default()
    }

    /// Aborts on a node what the operator has found. A node that has not come to it is forgotten now and then, the first time.
    pub fn abort(&mut self, node: NodeId, places: &[Gsn], disk: &mut dyn Directory) -> Result<(), String> {
        let mut aborts = Aborts::of(disk).map_err(|error| error.to_string())?;
        for gsn in places {
            let drawn = KeyHash::of(format!("{} {} {}", self.seed, node.0, gsn.0).as_bytes()).0;
            let is_forgotten = self.places.len() > 1 && drawn.is_multiple_of(2);
            if is_forgotten && !self.is_past(node, gsn.epoch()) && !self.aborted.contains(gsn) {
                continue;
            }
            aborts.add(*gsn, "it ends the process").map_err(|error| error.to_string())?;
        }
        write(&mut aborts, disk)
    }
}

/// Writes the file anew, as in force.
fn write(aborts: &mut Aborts, disk: &mut dyn Directory) -> Result<(), String> {
    aborts.take_effect();
    let bytes = aborts.to_bytes().map_err(|error| error.to_string())?;
    let aside = format!("{FILE}.new");
    let names: Vec<String> =
        disk.list().map_err(|e| e.to_string())?.into_iter().map(|(file, _)| file).collect();
    let removed = [aside.as_str(), FILE].into_iter().filter(|file| names.iter().any(|name| name == file));
    let mut ops: Vec<DiskOp> = Vec::new();
    ops.extend(removed.map(|file| DiskOp::Remove { file: file.to_owned() }));
    ops.extend([
        DiskOp::Create { file: aside.clone(), len: 0 },
        DiskOp::Write { file: aside.clone(), offset: 0, data: vec![Bytes::from(bytes)] },
        DiskOp::Sync { file: aside.clone() },
        DiskOp::Rename { file: aside, to: FILE.to_owned() },
        DiskOp::SyncDirectory,
    ]);
    ops.iter().try_for_each(|op| disk.apply(op)).map_err(|error| error.to_string())
}
