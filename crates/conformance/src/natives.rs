//! Native procedures that tests call with FCALL: one that may abort, one that has to find its keys first, and one that no
//! client can name.

use std::sync::Arc;

use ordain_model::{
    Abort, Access, Args, ArgsBuilder, Db, FragmentContext, Known, PlanError, Planner, Procedure, ProcedureId,
    Reconnaissance, Registry, ReplyContext, SlotNo, system,
};

/// Adds `till.take`, `till.follow` and the hidden `till.hidden`.
pub fn register(registry: &mut Registry) {
    registry.register_native(ProcedureId(1000), "till.take", Arc::new(Take));
    registry.register_native(ProcedureId(1001), "till.follow", Arc::new(Follow));
    registry.register(ProcedureId(1002), "till.hidden", Arc::new(Take));
}

fn number(text: Option<&[u8]>) -> i64 {
    text.and_then(|text| std::str::from_utf8(text).ok()?.parse().ok()).unwrap_or(0)
}

/// Takes an amount from a record; aborts if there is less. Arguments: key, amount.
struct Take;

impl Procedure for Take {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (Some(key), 2) = (args.iter().next(), args.len()) else { return Err(PlanError::SYNTAX) };
        planner.key(0, Access::Write, key)?;
        planner.abortable();
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let left = number(cx.cell().string()).saturating_sub(number(Some(cx.rest().bytes())));
        if left < 0 {
            cx.writer().error("NOFUNDS too little is left");
            return Err(Abort::Logic);
        }
        cx.cell_mut().put_string(left.to_string().as_bytes());
        cx.writer().int(left);
        Ok(())
    }
}

/// Reads the record whose key another record holds. Arguments: key.
struct Follow;

impl Follow {
    const CHECK: u16 = 0;
    const READ: u16 = 1;
}

impl Procedure for Follow {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let mut items = args.iter();
        system::plan_validation(planner, &mut items, Follow::CHECK)?;
        planner.key(Follow::READ, Access::Read, items.next().ok_or(PlanError::SYNTAX)?).map(drop)
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        if code == Follow::CHECK {
            return system::validate_read(cx, Abort::Restart);
        }
        let text = cx.cell().string().unwrap_or_default().to_vec();
        cx.writer().bulk(&text);
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        out.extend_from_slice(cx.slot(cx.count - 1));
    }

    fn abort_reply(&self, _abort: Abort, _slot: SlotNo, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        system::restart_reply(cx, 0, cx.count - 1, out);
    }

    fn is_dependent(&self) -> bool {
        true
    }

    fn reconnoitre(&self, args: Args<'_>, known: &Known) -> Result<Reconnaissance, PlanError> {
        let (Some(pointer), 1) = (args.get(0), args.len()) else { return Err(PlanError::SYNTAX) };
        let Some(seen) = known.reads.first() else {
            return Ok(Reconnaissance::Read(vec![(Db(0), pointer.to_vec())]));
        };
        let mut ready = Vec::new();
        let mut real = ArgsBuilder::new(&mut ready);
        system::validation_args([(seen.db, &*seen.key, seen.version)].into_iter(), &mut real);
        real.push(seen.cell.string().unwrap_or_default());
        Ok(Reconnaissance::Ready(ready))
    }
}
