//! A transaction as a small dataflow over keyed fragments (DESIGN.md, idea 2).
//!
//! A plan is a list of fragments in an order that is topological for its data dependencies. Fragment *n*
//! writes slot *n*; it may name earlier slots as inputs. Fragments of one key run in plan order. Everything an
//! engine wants to know before it executes (read set, write set, read-only or not, can it abort) is read off
//! the fragments; the code of a fragment is `(procedure, code)` and runs against one record.
//!
//! *Shipped* fragments and *compute* fragments go together: a compute fragment has no key of its own, its members
//! are the shipped fragments among its inputs, and it runs once, with all their records in hand. That is how a
//! script reads and writes several keys: read everything, one compute step, write everything back.

use smallvec::SmallVec;

use crate::args::{Arg, Args};
use crate::error::PlanError;
use crate::ids::{Db, ProcedureId, SlotNo};
use crate::key::{KeyHash, MAX_KEY_LEN, MAX_KEYS};
use crate::procedure::Registry;

/// The access of a fragment to what it names; decides the lock that it takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    /// Reads one record under a shared lock.
    Read,
    /// Reads and writes one record under an exclusive lock: update, insert or delete.
    Write,
    /// Runs where its hash points, on its inputs and members alone; takes no lock itself.
    Compute,
    /// Reads the whole table: every shard answers its part, the slot is the array of the parts.
    TableRead,
    /// Writes the whole table.
    TableWrite,
}

/// A step of a transaction. Offsets are into the transaction's arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fragment {
    /// Hash of the key, or of the place where a compute fragment runs.
    pub hash: KeyHash,
    /// The offset of the arguments of the call that the fragment belongs to.
    pub call_at: u32,
    /// The offset of the key's argument, from the start of the call's arguments.
    pub key_at: u32,
    /// The place of its first input in the chunk's list of inputs.
    pub(crate) inputs_at: u32,
    pub(crate) inputs_len: u32,
    /// The procedure whose code it runs.
    pub procedure: ProcedureId,
    /// The procedure's own number for the fragment.
    pub code: u16,
    /// The access to its record.
    pub access: Access,
    /// The database of its key.
    pub db: Db,
    /// True if it may abort the transaction: every other participant must know its verdict.
    pub abortable: bool,
    /// True if the reply does without its slot, so that no other shard needs it, unless it aborts.
    pub silent: bool,
    /// True if its record is shipped to a later compute fragment, which runs on it instead.
    pub shipped: bool,
    /// True if it reaches the child records of its record too ([`crate::children`]).
    pub with_children: bool,
    /// True if it is a *blind write*: it replaces its record, unless it aborts, and looks neither at the record's content, nor at
    /// its version, nor at its time: an update or an insert, whichever it turns out to be.
    pub is_blind: bool,
    /// True if it looks at most at whether there is a record, of what type it is and when it ends, and leaves no value but one that it
    /// makes itself: it can do without a value that is [evicted](crate::Value::Evicted).
    pub spares_value: bool,
    /// True if a later fragment has its slot or its record as an input.
    pub fed: bool,
    /// True if it is handed records, or may be: it has its share of what its transaction may carry
    /// ([`Limits`](crate::Limits)).
    pub carries: bool,
    /// True if it reads a record that its transaction neither writes nor checks: then it need not see what other
    /// transactions of its epoch write ([`Isolation::ReadCommitted`](crate::Isolation)). Known once the whole plan is.
    pub snapshot_readable: bool,
}

impl Fragment {
    /// True if the fragment names one record.
    pub const fn is_keyed(&self) -> bool {
        matches!(self.access, Access::Read | Access::Write)
    }

    /// True if the fragment may look at the value of its record.
    pub const fn reads_value(&self) -> bool {
        !(self.is_blind | self.spares_value)
    }

    /// True if the fragment is a check: its transaction stands only if the record is as it was read before.
    pub const fn is_check(&self) -> bool {
        self.abortable & matches!(self.access, Access::Read)
    }

    /// True if the fragment may change the state.
    pub const fn writes(&self) -> bool {
        matches!(self.access, Access::Write | Access::TableWrite)
    }

    /// True if nothing but the reply is made from its slot. Then no other shard needs it once the reply is certain to be
    /// too long. What a check has found is not of that kind: it may be the reply to a failure.
    #[inline]
    pub const fn only_answers(&self) -> bool {
        !(self.silent || self.abortable || self.fed || self.is_table())
    }

    /// True if the fragment need not be run once the reply is certain to be too long: its effect would not show.
    #[inline]
    pub const fn only_shows(&self) -> bool {
        self.only_answers() && matches!(self.access, Access::Read)
    }

    /// True if every shard takes part in the fragment.
    pub const fn is_table(&self) -> bool {
        matches!(self.access, Access::TableRead | Access::TableWrite)
    }
}

/// A call inside a transaction: which fragments are its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CallSpan {
    /// The procedure called.
    pub procedure: ProcedureId,
    /// The database selected at that point.
    pub db: Db,
    /// The offset of its arguments in the transaction's.
    pub call_at: u32,
    /// Its first fragment, counted from the transaction's first.
    pub first: u32,
    /// The number of its fragments.
    pub count: u32,
}

/// The vectors that plans are appended to; one set serves a whole chunk.
#[derive(Clone, Debug, Default)]
pub struct Plans {
    /// Fragments of all transactions, one after the other.
    pub fragments: Vec<Fragment>,
    /// Input slots of all fragments.
    pub inputs: Vec<SlotNo>,
    /// Calls of composite transactions.
    pub calls: Vec<CallSpan>,
}

impl Plans {
    /// The slots that a fragment needs, counted from the transaction's first fragment.
    pub fn inputs_of(&self, fragment: &Fragment) -> &[SlotNo] {
        let at = fragment.inputs_at as usize;
        &self.inputs[at..at + fragment.inputs_len as usize]
    }
}

/// The most fragments that one transaction may have.
pub const MAX_FRAGMENTS: usize = 4 * MAX_KEYS;

/// The planner: a procedure writes its plan with it.
#[derive(Debug)]
pub struct Planner<'a> {
    plans: &'a mut Plans,
    registry: &'a Registry,
    /// Index in `plans.fragments` of the transaction's first fragment.
    base: usize,
    /// Index in `plans.fragments` of this call's first fragment.
    first: usize,
    txn_args: Args<'a>,
    procedure: ProcedureId,
    db: Db,
    call_at: u32,
    keys: &'a mut usize,
}

impl<'a> Planner<'a> {
    /// Plans a whole transaction: the call and whatever it calls. On an error the plan is left as it was.
    ///
    /// # Errors
    /// The procedure's refusal, or a limit exceeded.
    pub fn plan(
        registry: &Registry,
        procedure: ProcedureId,
        db: Db,
        args: Args<'_>,
        plans: &mut Plans,
    ) -> Result<(), PlanError> {
        let marks = (plans.fragments.len(), plans.inputs.len(), plans.calls.len());
        let mut keys = 0;
        let mut planner = Planner {
            base: marks.0,
            first: marks.0,
            registry,
            txn_args: args,
            procedure,
            db,
            call_at: 0,
            keys: &mut keys,
            plans,
        };
        let result = match registry.get(procedure) {
            Some(code) => code.plan(args, &mut planner),
            None => Err(PlanError(format!("ERR unknown procedure number {procedure}").into_bytes().into())),
        };
        if result.is_err() {
            plans.fragments.truncate(marks.0);
            plans.inputs.truncate(marks.1);
            plans.calls.truncate(marks.2);
        }
        result
    }

    /// The database selected for this call.
    pub fn db(&self) -> Db {
        self.db
    }

    /// The hash of a key where the transaction will run, for [`Planner::compute`].
    #[inline]
    pub fn hash_of(&self, key: &[u8]) -> KeyHash {
        self.registry.placement().hash_of(key)
    }

    /// The procedures there are.
    pub fn registry(&self) -> &'a Registry {
        self.registry
    }

    /// Adds a fragment on a key that stands in this call's arguments.
    ///
    /// # Errors
    /// Key too long, or too many keys.
    #[inline]
    pub fn key(&mut self, code: u16, access: Access, key: Arg<'_>) -> Result<SlotNo, PlanError> {
        self.key_in(self.db, code, access, key)
    }

    /// Adds a fragment on a key of another database.
    ///
    /// # Errors
    /// Key too long, too many keys, or a database below another.
    #[inline]
    pub fn key_in(&mut self, db: Db, code: u16, access: Access, key: Arg<'_>) -> Result<SlotNo, PlanError> {
        if db.holds_children() {
            return Err(PlanError::fixed("ERR what lies below a record is reached through the record alone"));
        }
        if key.bytes.len() > MAX_KEY_LEN {
            return Err(PlanError::fixed("ERR key exceeds the limit of 64 KiB"));
        }
        *self.keys += 1;
        if *self.keys > MAX_KEYS {
            return Err(PlanError::fixed("ERR transaction exceeds the limit of 65536 keys"));
        }
        self.push(code, access, db, self.hash_of(key.bytes), key.at)
    }

    /// Adds a fragment on a key whose record is shipped to the next compute fragment.
    ///
    /// # Errors
    /// Key too long, or too many keys.
    pub fn ship(&mut self, access: Access, key: Arg<'_>) -> Result<SlotNo, PlanError> {
        let slot = self.key(0, access, key)?;
        if let Some(fragment) = self.plans.fragments.last_mut() {
            fragment.shipped = true;
            fragment.silent = true;
        }
        Ok(slot)
    }

    /// Adds a compute fragment that runs on the shard of `near`, the [hash](Planner::hash_of) of a key.
    ///
    /// # Errors
    /// Too many fragments.
    pub fn compute(&mut self, code: u16, near: KeyHash) -> Result<SlotNo, PlanError> {
        let slot = self.compute_alone(code, near)?;
        self.carries();
        Ok(slot)
    }

    /// Adds a compute fragment that runs on the shard of `near` and is shipped no record.
    ///
    /// # Errors
    /// Too many fragments.
    pub fn compute_alone(&mut self, code: u16, near: KeyHash) -> Result<SlotNo, PlanError> {
        self.push(code, Access::Compute, self.db, near, 0)
    }

    /// Adds a fragment over the whole table. `access` is [`Access::TableRead`] or [`Access::TableWrite`].
    ///
    /// # Errors
    /// Too many fragments.
    pub fn table(&mut self, code: u16, access: Access) -> Result<SlotNo, PlanError> {
        self.push(code, access, self.db, KeyHash::default(), 0)
    }

    /// Names a slot as the next input of the fragment added last.
    pub fn input(&mut self, slot: SlotNo) {
        let at = self.plans.inputs.len() as u32;
        if let Some(fragment) = self.last() {
            if fragment.inputs_len == 0 {
                fragment.inputs_at = at;
            }
            fragment.inputs_len += 1;
            self.plans.inputs.push(slot);
        }
        if let Some(source) = self.plans.fragments.get_mut(self.base + slot.0 as usize) {
            debug_assert!(!(source.fed && source.shipped), "a record is shipped once");
            source.fed = true;
        }
    }

    /// Declares that the fragment added last is handed records by others.
    pub fn carries(&mut self) {
        if let Some(fragment) = self.last() {
            fragment.carries = true;
        }
    }

    /// Declares that the fragment added last may abort the transaction.
    pub fn abortable(&mut self) {
        if let Some(fragment) = self.last() {
            fragment.abortable = true;
        }
    }

    /// Declares that the fragment added last reaches the child records of its record too ([`crate::children`]). It
    /// must have a record of its own to run on, in a database that clients can select.
    pub fn with_children(&mut self) {
        if let Some(fragment) = self.last() {
            let may =
                fragment.is_keyed() && !fragment.shipped && !fragment.is_blind && fragment.db.0 < Db::COUNT;
            debug_assert!(may, "a fragment that cannot have children");
            fragment.with_children = may;
        }
    }

    /// Declares that the fragment added last is a [blind write](Fragment::is_blind). It must write a record that is neither
    /// shipped nor reached with its children.
    pub fn blind(&mut self) {
        self.blind_if(true);
    }

    /// As [`Planner::blind`], on a condition.
    #[inline]
    pub fn blind_if(&mut self, is_blind: bool) {
        if let Some(fragment) = self.last().filter(|_| is_blind) {
            let may = fragment.access == Access::Write && !fragment.shipped && !fragment.with_children;
            debug_assert!(may, "a fragment that cannot be blind");
            fragment.is_blind = may;
        }
    }

    /// The number of fragments added so far.
    pub fn count(&self) -> usize {
        self.plans.fragments.len()
    }

    /// Declares that the fragments added since there were so many [spare their values](Fragment::spares_value). They must have records of
    /// their own, which are neither shipped nor reached with their children.
    pub fn spare_values(&mut self, since: usize) {
        for fragment in &mut self.plans.fragments[since..] {
            let may = fragment.is_keyed() && !fragment.shipped && !fragment.with_children;
            debug_assert!(may, "a fragment that cannot spare its value");
            fragment.spares_value = may;
        }
    }

    /// Declares that the reply does without the slot of the fragment added last, unless that aborts.
    pub fn silent(&mut self) {
        self.silent_if(true);
    }

    /// As [`Planner::silent`], on a condition.
    #[inline]
    pub fn silent_if(&mut self, is_silent: bool) {
        if let Some(fragment) = self.last() {
            fragment.silent |= is_silent;
        }
    }

    /// The fragment that this call added last: never one of the call or the transaction before.
    fn last(&mut self) -> Option<&mut Fragment> {
        debug_assert!(self.first < self.plans.fragments.len(), "a declaration about no fragment");
        self.plans.fragments.get_mut(self.first..)?.last_mut()
    }

    /// Plans a call that stands in an argument of this one, as [`encode_call`] wrote it.
    ///
    /// # Errors
    /// A damaged encoding, an unknown procedure, or that procedure's refusal.
    pub fn call(&mut self, item: Arg<'_>) -> Result<(), PlanError> {
        const DAMAGED: PlanError = PlanError::fixed("ERR damaged call inside a transaction");
        let (procedure, db, _) = decode_call(item.bytes).ok_or(DAMAGED)?;
        if self.call_at != 0 {
            return Err(PlanError::fixed("ERR calls inside a transaction cannot be nested"));
        }
        let call_at = item.at + CALL_OFFSET;
        let args = nested_args(self.txn_args, call_at);
        let code = self.registry.get(procedure).ok_or(DAMAGED)?;
        let first = self.plans.fragments.len() - self.base;
        let mut inner = Planner {
            plans: self.plans,
            registry: self.registry,
            base: self.base,
            first: self.base + first,
            txn_args: self.txn_args,
            procedure,
            db,
            call_at,
            keys: self.keys,
        };
        code.plan(args, &mut inner)?;
        let count = (self.plans.fragments.len() - self.base - first) as u32;
        self.plans.calls.push(CallSpan { procedure, db, call_at, first: first as u32, count });
        Ok(())
    }

    #[inline]
    fn push(
        &mut self,
        code: u16,
        access: Access,
        db: Db,
        hash: KeyHash,
        key_at: u32,
    ) -> Result<SlotNo, PlanError> {
        let slot = self.plans.fragments.len() - self.base;
        if slot >= MAX_FRAGMENTS {
            return Err(PlanError::fixed("ERR transaction has too many steps"));
        }
        self.plans.fragments.push(Fragment {
            hash,
            call_at: self.call_at,
            key_at,
            inputs_at: 0,
            inputs_len: 0,
            procedure: self.procedure,
            code,
            access,
            db,
            abortable: false,
            silent: false,
            shipped: false,
            with_children: false,
            is_blind: false,
            spares_value: false,
            fed: false,
            carries: false,
            snapshot_readable: false,
        });
        Ok(SlotNo(slot as u32))
    }
}

/// The most hashes for which a search is faster than sorting.
const FEW: usize = 16;
/// The number of bits that are enough for the hashes of most transactions to have one each.
const BITS: usize = 1024;

/// Finds which fragments of a transaction are [snapshot-readable](Fragment::snapshot_readable). A check reads the record as
/// the order has it, or else a validated read would prove nothing; so does every other read of its transaction under that
/// name, in any database. A transaction over the whole table runs alone, so nothing is won by reading beside it.
pub(crate) fn mark_snapshot_readable(fragments: &mut [Fragment]) {
    let is_read = |fragment: &Fragment| (fragment.access == Access::Read) & !fragment.abortable;
    // Mostly a bit says that nothing else has this name. What is read and what is written is in no order that a processor
    // could foresee, so this has no branches.
    let place = |fragment: &Fragment| (fragment.hash.tag() as usize % BITS / 64, fragment.hash.tag() % 64);
    let (mut bits, mut is_table, mut is_some_read) = ([0u64; BITS / 64], false, false);
    for fragment in &*fragments {
        let (is_read, (word, bit)) = (is_read(fragment), place(fragment));
        bits[word] |= u64::from(fragment.is_keyed() & !is_read) << bit;
        is_table |= fragment.is_table();
        is_some_read |= is_read;
    }
    if is_table || !is_some_read {
        return;
    }
    let mut is_doubtful = false;
    for fragment in &mut *fragments {
        let (is_read, (word, bit)) = (is_read(fragment), place(fragment));
        let may_be_used = bits[word] >> bit & 1 == 1;
        fragment.snapshot_readable = is_read & !may_be_used;
        is_doubtful |= is_read & may_be_used;
    }
    if !is_doubtful {
        return;
    }
    let others = fragments.iter().filter(|fragment| fragment.is_keyed() && !is_read(fragment));
    let mut used: SmallVec<[KeyHash; FEW]> = others.map(|fragment| fragment.hash).collect();
    let are_few = used.len() <= FEW;
    if !are_few {
        used.sort_unstable();
    }
    let is_used =
        |hash: &KeyHash| if are_few { used.contains(hash) } else { used.binary_search(hash).is_ok() };
    for fragment in fragments {
        fragment.snapshot_readable = is_read(fragment) && !is_used(&fragment.hash);
    }
}

/// From an argument's offset to the arguments of the call encoded in it: length prefix, procedure, database.
const CALL_OFFSET: u32 = 4 + 3;

/// Encodes a call as an argument of another.
pub fn encode_call(procedure: ProcedureId, db: Db, args: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(args.len() + 3);
    out.extend_from_slice(&procedure.0.to_le_bytes());
    out.push(db.0);
    out.extend_from_slice(args);
    out
}

/// Decodes a call; `None` for damaged bytes.
pub fn decode_call(bytes: &[u8]) -> Option<(ProcedureId, Db, Args<'_>)> {
    let (head, args) = bytes.split_first_chunk::<3>()?;
    Some((ProcedureId(u16::from_le_bytes([head[0], head[1]])), Db(head[2]), Args::parse(args)?))
}

/// The arguments of the call at `call_at` of a transaction: 0 for the transaction's own.
#[inline]
pub fn nested_args(txn_args: Args<'_>, call_at: u32) -> Args<'_> {
    let bytes = txn_args.encoded();
    if call_at == 0 {
        return txn_args;
    }
    let start = call_at as usize;
    let prefix = start - CALL_OFFSET as usize;
    let len = bytes[prefix..].first_chunk::<4>().map_or(0, |n| u32::from_le_bytes(*n) as usize);
    Args::trusted(&bytes[start..(prefix + 4 + len).min(bytes.len())])
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn fragment() -> Fragment {
        Fragment {
            hash: KeyHash(0),
            call_at: 0,
            key_at: 0,
            inputs_at: 0,
            inputs_len: 0,
            procedure: ProcedureId(0),
            code: 0,
            access: Access::Read,
            db: Db(0),
            abortable: false,
            silent: false,
            shipped: false,
            with_children: false,
            is_blind: false,
            spares_value: false,
            fed: false,
            carries: false,
            snapshot_readable: false,
        }
    }

    #[test]
    fn a_fragment_is_forty_bytes_at_most() {
        assert!(size_of::<Fragment>() <= 40, "{}", size_of::<Fragment>());
    }

    /// Plans a fragment before some others on the same key, and one after them.
    fn plan_between(add: impl Fn(&mut Planner<'_>, Arg<'_>)) -> Vec<Fragment> {
        let (mut plans, registry, mut keys) = (Plans::default(), Registry::default(), 0);
        let encoded = crate::args::encode(&["a"]);
        let txn_args = Args::parse(&encoded).unwrap();
        let mut planner = Planner {
            plans: &mut plans,
            registry: &registry,
            base: 0,
            first: 0,
            txn_args,
            procedure: ProcedureId(1),
            db: Db(0),
            call_at: 0,
            keys: &mut keys,
        };
        let key = txn_args.iter().next().unwrap();
        planner.key(0, Access::Write, key).unwrap();
        add(&mut planner, key);
        planner.key(0, Access::Write, key).unwrap();
        plans.fragments
    }

    #[test]
    fn only_the_last_fragment_is_declared_blind() {
        let fragments = plan_between(|planner, key| {
            planner.key(0, Access::Write, key).unwrap();
            planner.blind_if(false);
            planner.blind();
            planner.blind_if(false);
        });
        let are_blind: Vec<bool> = fragments.iter().map(|fragment| fragment.is_blind).collect();
        assert_eq!(are_blind, [false, true, false]);
    }

    #[test]
    fn what_looks_at_records_cannot_be_declared_blind() {
        let add: [fn(&mut Planner<'_>, Arg<'_>); 6] = [
            |planner, key| _ = planner.key(0, Access::Read, key),
            |planner, key| _ = planner.ship(Access::Write, key),
            |planner, key| {
                planner.key(0, Access::Write, key).unwrap();
                planner.with_children();
            },
            |planner, _| _ = planner.compute_alone(0, KeyHash(0)),
            |planner, _| _ = planner.table(0, Access::TableWrite),
            |planner, key| {
                // The other way round: what is blind has no children.
                planner.key(0, Access::Write, key).unwrap();
                planner.blind();
                planner.with_children();
                planner.key(0, Access::Read, key).unwrap();
            },
        ];
        for (n, add) in add.into_iter().enumerate() {
            let plan = || {
                plan_between(|planner, key| {
                    add(planner, key);
                    planner.blind();
                })
            };
            assert!(std::panic::catch_unwind(plan).is_err(), "{n}");
        }
    }

    #[test]
    fn a_call_survives_nesting() {
        let inner = encode_call(ProcedureId(9), Db(3), &crate::args::encode(&["a"]));
        let outer = crate::args::encode(&[&b"x"[..], &inner]);
        let outer = Args::parse(&outer).unwrap();
        let item = outer.iter().nth(1).unwrap();
        let (procedure, db, args) = decode_call(item.bytes).unwrap();
        assert_eq!((procedure, db), (ProcedureId(9), Db(3)));
        assert_eq!(nested_args(outer, item.at + CALL_OFFSET), args);
        assert!(decode_call(&inner[..inner.len() - 1]).is_none());
    }

    proptest! {
        /// Whether they are few or many, and whether or not others share their bits.
        #[test]
        fn pure_is_what_is_read_and_neither_written_nor_checked(
            uses in prop::collection::vec((0..60u64, 0..3), 0..60),
        ) {
            let fragment = |(key, kind): (u64, i32)| Fragment {
                hash: KeyHash(((key % 30) << 22) | (key / 30)),
                access: if kind == 1 { Access::Write } else { Access::Read },
                abortable: kind == 2,
                ..fragment()
            };
            let mut fragments: Vec<Fragment> = uses.iter().copied().map(fragment).collect();
            mark_snapshot_readable(&mut fragments);
            for ((key, kind), fragment) in uses.iter().zip(&fragments) {
                let is_used = uses.iter().any(|(other, kind)| other == key && *kind != 0);
                prop_assert_eq!(fragment.snapshot_readable, *kind == 0 && !is_used);
            }
        }
    }
}
