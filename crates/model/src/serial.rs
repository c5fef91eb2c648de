//! Runs one plan at a time, alone, on records that are in hand: how a script's calls are executed against its
//! declared keys, and an interactive transaction's commands against its snapshot.

use crate::args::{Arg, Args};
use crate::cell::{Cell, CellMut};
use crate::datum::{Datum, TOO_LONG, TOO_MUCH};
use crate::error::{Abort, PlanError};
use crate::ids::{Db, Gsn, Millis, ProcedureId, SlotNo};
use crate::plan::{Access, Fragment, Planner, Plans, nested_args};
use crate::procedure::{Frame, Inputs, Locals, Members, Registry, ReplyContext, Slots, Target};
use crate::random::mix;
use crate::stamp::Version;
use crate::value::Value;

/// The reason for which a call inside a transaction did not run. It had no effect.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// The arguments were refused.
    #[error("{0}")]
    Plan(#[from] PlanError),
    /// The call touches a key that is not in hand.
    #[error("key was not declared")]
    Undeclared,
    /// The call writes a key that was declared read-only, or writes in a read-only script.
    #[error("write to a read-only key")]
    ReadOnly,
    /// The call is over the whole table, reaches below a record, or runs a script of its own.
    #[error("this command cannot run inside a transaction's code")]
    NotAllowed,
    /// Its answer takes more than the memory that it was given.
    #[error("no room for the answer")]
    NoRoom,
    /// The call aborted.
    #[error("aborted")]
    Abort(Abort),
}

/// The records that a plan may touch.
pub trait Hand {
    /// The place of a record, if it is in hand.
    fn find(&self, db: Db, key: &[u8]) -> Option<usize>;
    /// The record that stands there for reading, as the transaction sees it, and its version.
    fn read(&self, at: usize) -> (&Cell, Version);
    /// The record that stands there for writing; `None` if it may not be written.
    fn write(&mut self, at: usize) -> Option<CellMut<'_>>;
}

impl Hand for dyn Members + '_ {
    fn find(&self, db: Db, key: &[u8]) -> Option<usize> {
        Members::find(self, db, key)
    }

    fn read(&self, at: usize) -> (&Cell, Version) {
        (self.cell(at), self.version(at))
    }

    fn write(&mut self, at: usize) -> Option<CellMut<'_>> {
        self.cell_mut(at)
    }
}

/// Vectors used again from call to call.
#[derive(Debug, Default)]
pub struct Scratch {
    plans: Plans,
    slots: SlotBuffer,
    /// The place of each fragment's record.
    places: Vec<usize>,
    touched: Touched,
}

impl Scratch {
    /// The sizes of what the last call touched.
    pub fn touched(&self) -> Touched {
        self.touched
    }
}

/// The sizes of the records that a call touches, before it and after.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Touched {
    /// Fragments on records.
    pub records: usize,
    /// [`Cell::weight`] of the records that are read only, and of hashes that are written in a field.
    pub read: usize,
    /// [`Cell::weight`] of the strings that are written, before and after.
    pub written: usize,
    /// Bytes by which strings have grown.
    pub grown: usize,
}

impl Touched {
    fn note(&mut self, cell: &Cell, access: Access) {
        match (&cell.value, access) {
            (Some(Value::String(bytes)), Access::Write) => self.written += bytes.len(),
            _ => self.read += cell.weight(),
        }
    }
}

/// The surroundings of a call: what it sees besides the records.
#[derive(Clone, Copy, Debug)]
pub struct Surroundings<'a> {
    /// The procedures there are.
    pub registry: &'a Registry,
    /// The time of the transaction.
    pub now: Millis,
    /// A seed for this call alone.
    pub seed: u64,
    /// True if writing is refused altogether.
    pub read_only: bool,
    /// Bytes that the answers of the call's fragments may take, and its reply as many.
    pub room: usize,
}

/// Plans and runs a call on the records in hand and appends its reply. Every key is checked before the first
/// fragment runs.
///
/// # Errors
/// [`CallError`]; nothing was changed then, except by [`CallError::Abort`] and [`CallError::NoRoom`]: the caller rolls back. The
/// reply to an abort was appended.
#[allow(clippy::too_many_arguments)]
pub fn call(
    surroundings: Surroundings<'_>,
    hand: &mut (impl Hand + ?Sized),
    scratch: &mut Scratch,
    procedure: ProcedureId,
    db: Db,
    args: Args<'_>,
    locals: &mut Locals,
    out: &mut Vec<u8>,
) -> Result<(), CallError> {
    let Surroundings { registry, now, seed, read_only, mut room } = surroundings;
    let Scratch { plans, slots, places, touched } = scratch;
    *touched = Touched::default();
    plans.fragments.clear();
    plans.inputs.clear();
    plans.calls.clear();
    slots.clear();
    places.clear();
    Planner::plan(registry, procedure, db, args, plans)?;
    for fragment in &plans.fragments {
        if !fragment.is_keyed() || fragment.shipped || fragment.with_children {
            return Err(CallError::NotAllowed);
        }
        let key = key_of(args, fragment);
        let at = hand.find(fragment.db, key.bytes).ok_or(CallError::Undeclared)?;
        if fragment.access == Access::Write && (read_only || hand.write(at).is_none()) {
            return Err(CallError::ReadOnly);
        }
        touched.note(hand.read(at).0, fragment.access);
        places.push(at);
    }
    touched.records = places.len();
    for (fragment, &at) in plans.fragments.iter().zip(&*places) {
        let key = key_of(args, fragment);
        let code = registry.get(fragment.procedure).ok_or(CallError::NotAllowed)?;
        let mut slot = slots.take();
        let limits = registry.limits();
        let (share, most) = (limits.carried.min(room), limits.reply.min(room));
        let before = hand.read(at).0.weight();
        let (_, version) = hand.read(at);
        let target = if fragment.access == Access::Write {
            hand.write(at).map(Target::Write).ok_or(CallError::ReadOnly)?
        } else {
            Target::Read(hand.read(at).0)
        };
        let frame = Frame {
            args: nested_args(args, fragment.call_at),
            db: fragment.db,
            key,
            now,
            seed,
            inputs: Inputs { slots, list: plans.inputs_of(fragment) },
            registry,
            share,
            most,
        };
        let result = code.run(fragment.code, &mut frame.on(target, version, None, locals, &mut slot));
        // The command refuses by the limits that it was given, which are the room if that is less than the usual.
        let is_refused = match Datum::first(&slot) {
            Datum::Error(text) => {
                most < limits.reply && text == TOO_LONG.as_bytes()
                    || share < limits.carried && text == TOO_MUCH.as_bytes()
            }
            _ => false,
        };
        let left = room.checked_sub(slot.len()).filter(|_| !is_refused);
        slots.put(slot);
        if let Err(abort) = result {
            let slot = SlotNo(slots.used as u32 - 1);
            let count = plans.fragments.len() as u32;
            let calls = &plans.calls;
            let cx = ReplyContext { txn_args: args, call_at: 0, db, slots, first: 0, count, calls, registry };
            registry.get(procedure).iter().for_each(|code| code.abort_reply(abort, slot, &cx, out));
            return Err(CallError::Abort(abort));
        }
        room = left.ok_or(CallError::NoRoom)?;
        if fragment.access == Access::Write {
            touched.note(hand.read(at).0, Access::Write);
            touched.grown += hand.read(at).0.weight().saturating_sub(before);
        }
    }
    let cx = ReplyContext {
        txn_args: args,
        call_at: 0,
        db,
        slots,
        first: 0,
        count: plans.fragments.len() as u32,
        calls: &plans.calls,
        registry,
    };
    if let Some(code) = registry.get(procedure) {
        code.reply(&cx, out);
    }
    Ok(())
}

/// The key of a fragment and where it stands in its call's arguments; empty if the fragment has none.
#[inline]
pub fn key_of<'a>(txn_args: Args<'a>, fragment: &Fragment) -> Arg<'a> {
    if !fragment.is_keyed() {
        return Arg { bytes: &[], at: 0 };
    }
    nested_args(txn_args, fragment.call_at)
        .from_offset(fragment.key_at)
        .next()
        .unwrap_or(Arg { bytes: &[], at: 0 })
}

/// The seed of a transaction: well mixed, a function of its sequence number alone.
pub const fn seed_of(gsn: Gsn) -> u64 {
    mix(gsn.0)
}

/// Slots whose buffers are kept.
#[derive(Debug, Default)]
struct SlotBuffer {
    slots: Vec<Vec<u8>>,
    used: usize,
}

impl SlotBuffer {
    fn clear(&mut self) {
        self.used = 0;
    }

    fn take(&mut self) -> Vec<u8> {
        match self.slots.get_mut(self.used) {
            Some(slot) => {
                let mut slot = std::mem::take(slot);
                slot.clear();
                slot
            }
            None => Vec::new(),
        }
    }

    fn put(&mut self, slot: Vec<u8>) {
        match self.slots.get_mut(self.used) {
            Some(place) => *place = slot,
            None => self.slots.push(slot),
        }
        self.used += 1;
    }
}

impl Slots for SlotBuffer {
    fn slot(&self, slot: SlotNo) -> &[u8] {
        self.slots[..self.used].get(slot.0 as usize).map_or(&[], |s| s)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::args::ArgsBuilder;
    use crate::datum::Writer;
    use crate::procedure::{FragmentContext, Procedure};

    struct One(Cell);

    impl Hand for One {
        fn find(&self, _: Db, _: &[u8]) -> Option<usize> {
            Some(0)
        }

        fn read(&self, _: usize) -> (&Cell, Version) {
            (&self.0, Version::NONE)
        }

        fn write(&mut self, _: usize) -> Option<CellMut<'_>> {
            None
        }
    }

    /// Answers each of its keys with a hundred bytes, or refuses.
    #[derive(Default)]
    struct Hundreds {
        /// The longest answer that it was allowed last.
        most: AtomicUsize,
    }

    impl Procedure for Hundreds {
        fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
            args.iter().try_for_each(|key| planner.key(0, Access::Read, key).map(drop))
        }

        fn run(&self, _: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
            self.most.store(cx.most, Ordering::Relaxed);
            if cx.most < 100 {
                Writer(cx.out).too_long();
            } else {
                cx.out.extend_from_slice(&[b'x'; 100]);
            }
            Ok(())
        }
    }

    #[test]
    fn a_call_that_has_no_room_for_its_answers_ends_as_they_are_written() {
        let (mut registry, hundreds) = (Registry::default(), Arc::new(Hundreds::default()));
        registry.register(ProcedureId(1), "hundreds", hundreds.clone());
        let result = |keys: usize, room: usize| {
            let surroundings =
                Surroundings { registry: &registry, now: Millis(1), seed: 0, read_only: false, room };
            let (mut encoded, mut out) = (Vec::new(), Vec::new());
            let mut args = ArgsBuilder::new(&mut encoded);
            (0..keys).for_each(|_| _ = args.push(b"k"));
            let args = Args::parse(&encoded).unwrap();
            let (mut hand, mut scratch) = (One(Cell::ABSENT), Scratch::default());
            let (id, db) = (ProcedureId(1), Db(0));
            call(surroundings, &mut hand, &mut scratch, id, db, args, &mut Locals::default(), &mut out)
        };
        let limit = registry.limits().reply;
        for (keys, room, most, is_enough) in [
            (1, 100, 100, true),
            (1, 99, 99, false),
            (1, 0, 0, false),
            (3, 300, 100, true),
            (3, 299, 99, false),
            (3, usize::MAX, limit, true),
        ] {
            let expected = if is_enough { Ok(()) } else { Err(CallError::NoRoom) };
            assert_eq!(result(keys, room), expected, "{keys} {room}");
            assert_eq!(hundreds.most.load(Ordering::Relaxed), most, "{keys} {room}");
        }
    }
}
