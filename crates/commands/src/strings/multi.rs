//! MSETNX: the one string command whose keys depend on each other.

use ordain_model::{
    Abort, Access, Args, Datum, FragmentContext, PlanError, Planner, Procedure, ReplyContext, Target, Value,
};

use super::check_pairs;
use crate::shape::{Input, each_key};

/// Sets all keys, or none if one of them exists.
///
/// All keys are read first. The fragment that writes the first key takes all those answers, decides and
/// says what it decided; the others take that decision. So no fragment but one has many inputs, and there are
/// three steps however many keys.
pub(super) struct SetAllIfAbsent;

impl SetAllIfAbsent {
    const LOOK: u16 = 0;
    const DECIDE: u16 = 1;
    const FOLLOW: u16 = 2;
}

impl Procedure for SetAllIfAbsent {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        check_pairs(args, "msetnx")?;
        let mut looks = Vec::with_capacity(args.len() / 2);
        each_key(args.iter(), 2, |key| {
            looks.push(planner.key(Self::LOOK, Access::Read, key)?);
            Ok(())
        })?;
        let mut decision = None;
        each_key(args.iter(), 2, |key| {
            match decision {
                None => {
                    decision = Some(planner.key(Self::DECIDE, Access::Write, key)?);
                    looks.iter().for_each(|slot| planner.input(*slot));
                }
                Some(decision) => {
                    planner.key(Self::FOLLOW, Access::Write, key)?;
                    planner.input(decision);
                }
            }
            Ok(())
        })
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let value = Input::of(cx).rest.bytes();
        let go = match code {
            Self::LOOK => cx.cell().value.is_none(),
            Self::DECIDE => (0..cx.inputs.len()).all(|i| cx.inputs.get(i) == Datum::Int(1)),
            _ => cx.inputs.get(0) == Datum::Int(1),
        };
        if let Target::Write(cell) = &mut cx.target
            && go
        {
            cell.put(Value::String(value.to_vec()));
        }
        cx.writer().int(i64::from(go));
        Ok(())
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        // Half of the fragments look; the one after them decides.
        out.extend_from_slice(cx.slot(cx.count / 2));
    }
}
