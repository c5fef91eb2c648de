//! Child records of other regions: they go with their parents, whose versions tell whether what was read is the newest (R-VERSION).

use std::sync::Arc;

use ordain_commands::ids;
use ordain_commit::{CommitEngine, Protocol};
use ordain_engines::{regions_2pl, regions_mvocc, regions_silo};
use ordain_model::datum::DatumReader;
use ordain_model::{
    Abort, Access, Args, Datum, FragmentContext, PlanError, Planner, Procedure, ProcedureId, Registry,
    ReplyContext, SlotNo, Value,
};
use ordain_role::Bugs;

use crate::world::World;
use crate::{demand_sound_of, said};

const ENGINES: [CommitEngine; 3] = [regions_2pl::ENGINE, regions_silo::ENGINE, regions_mvocc::ENGINE];
/// Puts the second argument into a child of the record that the first one names.
const PUT: ProcedureId = ProcedureId(60_001);
/// Copies that child into the record that the second argument names.
const COPY: ProcedureId = ProcedureId(60_002);
/// The suffix of the child.
const CHILD: &[u8] = b"child";

/// Adds the procedures.
pub fn register(registry: &mut Registry) {
    registry.register_native(PUT, "test.put-child", Arc::new(Put));
    registry.register_native(COPY, "test.copy-child", Arc::new(Copy));
}

struct Put;

impl Procedure for Put {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let parent = args.iter().next().ok_or(PlanError::SYNTAX)?;
        planner.key(0, Access::Write, parent)?;
        planner.with_children();
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let content = cx.args.get(1).unwrap_or_default().to_vec();
        cx.children().edit(CHILD, &mut |child| child.put_string(&content));
        cx.writer().ok();
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slots.slot(SlotNo(0)));
    }
}

struct Copy;

impl Procedure for Copy {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut keys = args.iter();
        let (Some(parent), Some(to)) = (keys.next(), keys.next()) else { return Err(PlanError::SYNTAX) };
        let read = planner.key(0, Access::Read, parent)?;
        planner.with_children();
        planner.key(1, Access::Write, to)?;
        planner.input(read);
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        match code {
            0 => {
                let content = match &cx.children().read(CHILD).value {
                    Some(Value::String(content)) => content.clone(),
                    _ => b"nothing".to_vec(),
                };
                cx.writer().bulk(&content);
            }
            _ => {
                let content = cx.inputs.get(0).as_bytes().unwrap_or_default().to_vec();
                cx.cell_mut().put_string(&content);
                cx.writer().ok();
            }
        }
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slots.slot(SlotNo(1)));
    }
}

/// M of A copies a child of B's, which L changes after M has read its parent in A's view.
fn changed(engine: CommitEngine, bugs: Bugs) -> Result<(), String> {
    let mut w = World::regions(engine, 2, bugs);
    let (x, p) = (w.key_in(0, 0), w.key_in(1, 0));
    let (a, b) = (w.led_by(0), w.led_by(1));
    let made = w.command(b, ids::SET, &[&p, b"parent"]);
    w.committed(made);
    w.run(crate::millis(10));
    // Of another region than the child's.
    let first = w.command(a, PUT, &[&p, b"old"]);
    w.committed(first);
    w.run(crate::millis(10));
    let late = w.hold(move |from, to, message| {
        (from.node, to.node) == (a, b) && matches!(said(message), Some(Protocol::Part(_)))
    });
    let m = w.command(a, COPY, &[&p, &x]);
    w.until("M's request", World::holds_something);
    let l = w.command(b, PUT, &[&p, b"new"]);
    w.committed(l);
    w.release(late);
    w.committed(m);
    let copy = w.command(a, ids::GET, &[&x]);
    w.committed(copy);
    let seen = w.answered(copy).reply;
    w.end()?;
    match DatumReader(&seen).eq([Datum::Bulk(b"new")]) {
        true => Ok(()),
        false => Err(format!("a child was changed after it was read, and counts: {seen:?}")),
    }
}

#[test]
fn a_child_of_another_region_is_read_and_written_with_its_parent() {
    demand_sound_of(&ENGINES, changed);
}
