//! Procedures: how arguments become a plan, and the code of its fragments.

use std::any::Any;
use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use crate::args::{Arg, ArgIter, Args};
use crate::cell::{Cell, CellMut};
use crate::children::Children;
use crate::computing::{Stop, Stopwatch};
use crate::datum::{Datum, Writer};
use crate::error::{Abort, PlanError};
use crate::ids::{Db, Millis, ProcedureId, SlotNo};
use crate::limits::Limits;
use crate::placement::Placement;
use crate::plan::{CallSpan, Planner, nested_args};
use crate::stamp::Version;
use crate::table::Table;

/// A kind of transaction. Everything it does is a function of its arguments, the records its fragments name,
/// the transaction's time and seed: no clock, no randomness, no iteration order of a hash map.
pub trait Procedure: Send + Sync {
    /// Appends the fragments that these arguments ask for.
    ///
    /// # Errors
    /// Bad arguments; nothing is sequenced then.
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError>;

    /// Runs one fragment and writes its slot.
    ///
    /// # Errors
    /// Only a fragment declared abortable may return one; what it wrote to its slot is the reply.
    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort>;

    /// Composes the reply of a call from its slots. The default is the call's first slot.
    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(0));
    }

    /// Composes the reply of a transaction that aborted; `slot` is the fragment that decided it. The default
    /// is what that fragment answered, or a text that says why.
    fn abort_reply(&self, abort: Abort, slot: SlotNo, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        match cx.slots.slot(slot) {
            [] => Writer(out).abort(abort),
            answer => out.extend_from_slice(answer),
        }
    }

    /// True if a fragment over the whole table reads values, not names, types and expiries alone: then none of them is evicted while it runs.
    fn scans_values(&self) -> bool {
        false
    }

    /// True if the caller may not know the keys: then the gateway asks [`Procedure::reconnoitre`] before it
    /// plans (calvin.md, section 4.7).
    fn is_dependent(&self) -> bool {
        false
    }

    /// Finds the next step of the reconnaissance from a caller's arguments and what is known so far: something more to
    /// find out, or the arguments of the real transaction, validated reads included.
    ///
    /// The real transaction checks that what it was made from still holds, and if not it aborts with
    /// [`Abort::Restart`]. Its reply then says how things are, and no new reconnaissance is made of what it says
    /// (calvin.md, section 4.7, rule 4): either an array of the records read, as
    /// [`restart_reply`](crate::system::restart_reply) writes it, or one bulk: a fresh answer, encoded just like the
    /// reply of what was asked, which takes the place of all answers.
    ///
    /// # Errors
    /// Bad arguments.
    fn reconnoitre(&self, args: Args<'_>, known: &Known) -> Result<Reconnaissance, PlanError> {
        let _ = known;
        Ok(Reconnaissance::Ready(args.encoded().to_vec()))
    }
}

/// A record as the reconnaissance saw it.
#[derive(Clone, Debug, PartialEq)]
pub struct ValidatedRead {
    /// The record's database.
    pub db: Db,
    /// The record's key.
    pub key: Vec<u8>,
    /// The version of its content; [`Version::NONE`] for an absent record.
    pub version: Version,
    /// The content as it was read.
    pub cell: Cell,
}

/// The findings of the reconnaissance so far.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// The records read, each as it was seen last.
    pub reads: Vec<ValidatedRead>,
    /// The answers to what was asked, in order, each encoded as a [`Datum`]; after a restart that came with a fresh
    /// answer, that one alone.
    pub answers: Vec<Vec<u8>>,
}

impl Known {
    /// Takes note of a record, in place of what was known of it.
    pub fn learn(&mut self, read: ValidatedRead) {
        match self.reads.iter_mut().find(|known| known.db == read.db && known.key == read.key) {
            Some(known) => *known = read,
            None => self.reads.push(read),
        }
    }
}

/// The next step of finding a transaction's keys.
#[derive(Clone, Debug, PartialEq)]
pub enum Reconnaissance {
    /// Read these records and ask again.
    Read(Vec<(Db, Vec<u8>)>),
    /// Run this procedure with these arguments, encoded, as a transaction of its own, add its reply to the answers
    /// and ask again. It must only read, and not need a reconnaissance itself. If it aborts, so does the request.
    Ask(ProcedureId, Vec<u8>),
    /// Submit the transaction with these arguments.
    Ready(Vec<u8>),
}

/// Slots of one transaction.
pub trait Slots {
    /// The slot that a fragment wrote; empty if it has not run.
    fn slot(&self, slot: SlotNo) -> &[u8];
}

impl Slots for Vec<Vec<u8>> {
    fn slot(&self, slot: SlotNo) -> &[u8] {
        self.get(slot.0 as usize).map_or(&[], |s| s)
    }
}

/// The inputs of a fragment, in the order in which its plan named them.
#[derive(Clone, Copy)]
pub struct Inputs<'a> {
    /// The slots of the transaction.
    pub slots: &'a dyn Slots,
    /// The numbers of the slots that are inputs.
    pub list: &'a [SlotNo],
}

impl<'a> Inputs<'a> {
    /// No inputs.
    pub fn none() -> Inputs<'static> {
        struct Empty;
        impl Slots for Empty {
            fn slot(&self, _: SlotNo) -> &[u8] {
                &[]
            }
        }
        Inputs { slots: &Empty, list: &[] }
    }

    /// Input `i`, encoded; empty if there is none.
    #[inline]
    pub fn raw(&self, i: usize) -> &'a [u8] {
        self.list.get(i).map_or(&[], |s| self.slots.slot(*s))
    }

    /// Input `i`, its first value decoded.
    pub fn get(&self, i: usize) -> Datum<'a> {
        Datum::first(self.raw(i))
    }

    /// The number of inputs.
    pub fn len(&self) -> usize {
        self.list.len()
    }

    /// True if there are none.
    pub fn is_empty(&self) -> bool {
        self.list.is_empty()
    }
}

impl fmt::Debug for Inputs<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inputs").field("list", &self.list).finish_non_exhaustive()
    }
}

/// The records in the hands of a compute fragment.
pub trait Members {
    /// The number of members.
    fn len(&self) -> usize;
    /// True if there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The member with this key, if it was declared.
    fn find(&self, db: Db, key: &[u8]) -> Option<usize>;
    /// The record, as the transaction sees it (an expired one is absent).
    fn cell(&self, member: usize) -> &Cell;
    /// The version of the record.
    fn version(&self, member: usize) -> Version;
    /// The record for change, noting inverses in the members' own journal; `None` if it was declared
    /// read-only.
    fn cell_mut(&mut self, member: usize) -> Option<CellMut<'_>>;
    /// Bytes kept to undo the changes made since the compute fragment began: a function of the changes alone.
    fn undo_bytes(&self) -> usize;
    /// Undoes every change made since the compute fragment began.
    fn roll_back(&mut self);
}

/// The target of a fragment.
pub enum Target<'a> {
    /// A record, shared.
    Read(&'a Cell),
    /// A record, exclusive.
    Write(CellMut<'a>),
    /// The whole table of a shard.
    Table(&'a mut dyn Table),
    /// The members of a compute fragment.
    Compute(&'a mut dyn Members),
}

impl fmt::Debug for Target<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Target::Read(_) => "Read",
            Target::Write(_) => "Write",
            Target::Table(_) => "Table",
            Target::Compute(_) => "Compute",
        })
    }
}

/// State that a procedure keeps on each shard between transactions, such as a script interpreter with its
/// compiled scripts. Caches only: nothing in it may show in a result.
#[derive(Default)]
pub struct Locals {
    entries: Vec<Box<dyn Any + Send>>,
    patience: Option<u64>,
    has_given_up: bool,
    /// The flag that ends the next runs of fragments from outside; none: they are not ended. Only for a run that is made
    /// once: what is executed by others too must come to the same end there.
    pub stop: Option<Stop>,
    /// The stopwatch that times the runs of scripts and functions, where a driver has one.
    pub stopwatch: Option<Arc<dyn Stopwatch>>,
    /// Counts for INFO.
    pub counts: RecordCounts,
}

/// Counts of what the commands run on a shard have found, since the node was started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecordCounts {
    /// Reads of a key that found a record.
    pub hits: u64,
    /// Reads of a key that found none.
    pub misses: u64,
    /// Records removed because their time had come.
    pub expired: u64,
}

impl RecordCounts {
    /// A command has read a key.
    #[inline]
    pub fn read(&mut self, found: bool) {
        if found { self.hits += 1 } else { self.misses += 1 }
    }
}

impl Locals {
    /// The state of type `T`, made by `init` at first use.
    pub fn get<T: Send + 'static>(&mut self, init: impl FnOnce() -> T) -> &mut T {
        let at = match self.entries.iter().position(|e| e.is::<T>()) {
            Some(at) => at,
            None => {
                self.entries.push(Box::new(init()));
                self.entries.len() - 1
            }
        };
        self.entries[at].downcast_mut::<T>().expect("the position was found by this very type")
    }
}

/// A bound on the work of one run of a compute fragment, for an executor that must not stand still.
///
/// It is no limit of the transaction: what a fragment may do in all is the procedure's business, and does not depend on
/// where it runs.
impl Locals {
    /// Sets how many units of work the next run of a fragment may do before it [gives up](Locals::give_up); none: all
    /// that it needs. A unit is about what an instruction of a script takes, tens of nanoseconds.
    pub fn set_patience(&mut self, patience: Option<u64>) {
        self.patience = patience;
        self.has_given_up = false;
    }

    /// The units of work after which a run is to give up, if it is to.
    pub fn patience(&self) -> Option<u64> {
        self.patience
    }

    /// Ends a run before its end: it has changed nothing and answered nothing, and is run again elsewhere.
    ///
    /// # Panics
    /// Without a bound: then there is nowhere else.
    pub fn give_up(&mut self) {
        assert!(self.patience.is_some(), "a run without a bound goes on to its end");
        self.has_given_up = true;
    }

    /// Says whether the last run gave up.
    pub fn has_given_up(&self) -> bool {
        self.has_given_up
    }

    /// Answers whether the last run gave up, and removes the bound.
    pub fn take_given_up(&mut self) -> bool {
        self.patience = None;
        std::mem::take(&mut self.has_given_up)
    }
}

impl fmt::Debug for Locals {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Locals").field("entries", &self.entries.len()).finish()
    }
}

/// Everything a fragment may look at.
#[derive(Debug)]
pub struct FragmentContext<'a> {
    /// The arguments of the fragment's call.
    pub args: Args<'a>,
    /// The database of the fragment's key, or of its call if it has none.
    pub db: Db,
    /// The fragment's key and where it stands in the arguments; empty if it has none.
    pub key: Arg<'a>,
    /// The transaction's time: that of its batch.
    pub now: Millis,
    /// The transaction's own seed: the only source of randomness.
    pub seed: u64,
    /// The version of the record's content; [`Version::NONE`] if it is absent.
    pub version: Version,
    /// The answers of earlier fragments.
    pub inputs: Inputs<'a>,
    /// The fragment's target.
    pub target: Target<'a>,
    /// The child records of its record; for a fragment with children only.
    pub children: Option<&'a mut dyn Children>,
    /// The procedures' state on this shard.
    pub locals: &'a mut Locals,
    /// The procedures there are.
    pub registry: &'a Registry,
    /// The bytes of records that it may ship to fragments that carry them, or be shipped.
    pub share: usize,
    /// The longest answer, bytes: what would be longer is refused while it is written.
    pub most: usize,
    /// The buffer of the slot.
    pub out: &'a mut Vec<u8>,
}

/// All that a fragment's code sees but its record: an executor makes it before it has found that.
#[derive(Clone, Copy, Debug)]
pub struct Frame<'a> {
    /// [`FragmentContext::args`].
    pub args: Args<'a>,
    /// [`FragmentContext::db`].
    pub db: Db,
    /// [`FragmentContext::key`].
    pub key: Arg<'a>,
    /// [`FragmentContext::now`].
    pub now: Millis,
    /// [`FragmentContext::seed`].
    pub seed: u64,
    /// [`FragmentContext::inputs`].
    pub inputs: Inputs<'a>,
    /// [`FragmentContext::registry`].
    pub registry: &'a Registry,
    /// [`FragmentContext::share`].
    pub share: usize,
    /// [`FragmentContext::most`].
    pub most: usize,
}

impl<'a> Frame<'a> {
    /// The context of the code on what it works on. It is assembled where it is used: one that is handed on is copied each
    /// time.
    #[inline(always)]
    pub fn on(
        self,
        target: Target<'a>,
        version: Version,
        children: Option<&'a mut dyn Children>,
        locals: &'a mut Locals,
        out: &'a mut Vec<u8>,
    ) -> FragmentContext<'a> {
        let Frame { args, db, key, now, seed, inputs, registry, share, most } = self;
        FragmentContext {
            args,
            db,
            key,
            now,
            seed,
            version,
            inputs,
            target,
            children,
            locals,
            registry,
            share,
            most,
            out,
        }
    }
}

impl FragmentContext<'_> {
    /// Writes the slot.
    #[inline]
    pub fn writer(&mut self) -> Writer<'_> {
        Writer(self.out)
    }

    /// The arguments after the fragment's key.
    #[inline]
    pub fn rest(&self) -> ArgIter<'_> {
        self.args.from_offset(self.key.at + 4 + self.key.bytes.len() as u32)
    }

    /// The record, as the transaction sees it.
    ///
    /// # Panics
    /// If the fragment has no record: a mistake of the procedure's plan.
    #[inline]
    pub fn cell(&self) -> &Cell {
        match &self.target {
            Target::Read(cell) => cell,
            Target::Write(cell) => cell,
            Target::Table(_) | Target::Compute(_) => panic!("the fragment's plan gave it no record"),
        }
    }

    /// The record, for change.
    ///
    /// # Panics
    /// If the fragment was not planned with [`crate::Access::Write`]: a mistake of the procedure's plan.
    #[inline]
    pub fn cell_mut(&mut self) -> CellMut<'_> {
        match &mut self.target {
            Target::Write(cell) => cell.reborrow(),
            _ => panic!("the fragment's plan gave it no record to write"),
        }
    }

    /// The child records of the fragment's record.
    ///
    /// # Panics
    /// If the fragment was not planned [with children](Planner::with_children): a mistake of the procedure's plan.
    #[inline]
    pub fn children(&mut self) -> &mut dyn Children {
        match &mut self.children {
            Some(children) => &mut **children,
            None => panic!("the fragment's plan gave it no child records"),
        }
    }
}

/// The context from which a reply is composed.
#[derive(Clone, Copy)]
pub struct ReplyContext<'a> {
    /// The arguments of the transaction.
    pub txn_args: Args<'a>,
    /// The offset of this call's arguments in them.
    pub call_at: u32,
    /// The database of the call.
    pub db: Db,
    /// The slots of the transaction.
    pub slots: &'a dyn Slots,
    /// The call's first fragment.
    pub first: u32,
    /// The number of the call's fragments.
    pub count: u32,
    /// The calls inside this one; for composite transactions only.
    pub calls: &'a [CallSpan],
    /// The procedures there are.
    pub registry: &'a Registry,
}

impl<'a> ReplyContext<'a> {
    /// The arguments of the call.
    pub fn args(&self) -> Args<'a> {
        nested_args(self.txn_args, self.call_at)
    }

    /// Slot `i` of the call's own.
    #[inline]
    pub fn slot(&self, i: u32) -> &'a [u8] {
        self.slots.slot(SlotNo(self.first + i))
    }

    /// Composes the reply of a call inside this one.
    pub fn call_reply(&self, call: &CallSpan, out: &mut Vec<u8>) {
        let inner = ReplyContext {
            call_at: call.call_at,
            db: call.db,
            first: call.first,
            count: call.count,
            calls: &[],
            ..*self
        };
        if let Some(procedure) = self.registry.get(call.procedure) {
            procedure.reply(&inner, out);
        }
    }
}

impl fmt::Debug for ReplyContext<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReplyContext")
            .field("first", &self.first)
            .field("count", &self.count)
            .finish_non_exhaustive()
    }
}

/// What a plan is made from: the procedures of a node, by number and by name, and the slots of keys. Fixed before anything is
/// planned.
#[derive(Clone, Default)]
pub struct Registry {
    by_id: Vec<Option<(&'static str, Arc<dyn Procedure>)>>,
    by_name: BTreeMap<&'static str, ProcedureId>,
    limits: Limits,
    placement: Placement,
    /// The procedures that clients may call by name.
    natives: BTreeMap<&'static [u8], ProcedureId>,
}

impl Registry {
    /// Adds a procedure under a number that no other has ever had.
    ///
    /// # Panics
    /// If the number or the name is taken: a mistake in the program.
    pub fn register(&mut self, id: ProcedureId, name: &'static str, procedure: Arc<dyn Procedure>) {
        let at = id.0 as usize;
        if self.by_id.len() <= at {
            self.by_id.resize_with(at + 1, || None);
        }
        assert!(self.by_id[at].is_none(), "procedure number {id} is taken twice");
        assert!(self.by_name.insert(name, id).is_none(), "procedure name {name} is taken twice");
        self.by_id[at] = Some((name, procedure));
    }

    /// Adds a procedure that clients may call by its name (`FCALL name numkeys key… arg…`). Its arguments are theirs:
    /// keys, then whatever else, so its plan must refuse whatever makes no sense.
    ///
    /// # Panics
    /// If the number or the name is taken: a mistake in the program.
    pub fn register_native(&mut self, id: ProcedureId, name: &'static str, procedure: Arc<dyn Procedure>) {
        self.register(id, name, procedure);
        self.natives.insert(name.as_bytes(), id);
    }

    /// The limits on what a transaction may hold of what it reads.
    #[inline]
    pub fn limits(&self) -> Limits {
        self.limits
    }

    /// The registry under other limits than the usual, for a test that exceeds them.
    #[must_use]
    pub fn limited(self, limits: Limits) -> Registry {
        Registry { limits, ..self }
    }

    /// The placement by which transactions are planned.
    #[inline]
    pub const fn placement(&self) -> &Placement {
        &self.placement
    }

    /// The registry that plans by a placement: that of the layout of the node.
    #[must_use]
    pub fn placing(self, placement: Placement) -> Registry {
        Registry { placement, ..self }
    }

    /// The procedure that clients call by this name.
    pub fn find_native(&self, name: &[u8]) -> Option<ProcedureId> {
        self.natives.get(name).copied()
    }

    /// The procedure with this number.
    #[inline]
    pub fn get(&self, id: ProcedureId) -> Option<&dyn Procedure> {
        match self.by_id.get(id.0 as usize) {
            Some(Some((_, procedure))) => Some(&**procedure),
            _ => None,
        }
    }

    /// The number of the procedure with this name.
    pub fn find(&self, name: &str) -> Option<ProcedureId> {
        self.by_name.get(name).copied()
    }

    /// The name of a procedure.
    pub fn name(&self, id: ProcedureId) -> Option<&'static str> {
        self.by_id.get(id.0 as usize)?.as_ref().map(|(name, _)| *name)
    }

    /// The names and numbers there are, in order of name.
    pub fn names(&self) -> impl Iterator<Item = (&'static str, ProcedureId)> {
        self.by_name.iter().map(|(n, i)| (*n, *i))
    }
}

impl fmt::Debug for Registry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.by_name.keys()).finish()
    }
}
