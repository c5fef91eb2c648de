//! Procedures of one fragment over the whole table.

use std::sync::Arc;

use crate::args::Args;
use crate::datum::Writer;
use crate::error::{Abort, PlanError};
use crate::plan::{Access, Planner};
use crate::procedure::{FragmentContext, Procedure, ReplyContext};
use crate::system::sum_parts;

/// A procedure of one fragment over the whole table: each shard answers for its part, and the reply is made of the parts.
#[derive(Debug)]
pub struct TableProcedure {
    access: Access,
    scans_values: bool,
    check: fn(Args<'_>) -> Result<(), PlanError>,
    run: fn(&mut FragmentContext<'_>),
    reply: fn(&ReplyContext<'_>, &mut Vec<u8>),
}

impl TableProcedure {
    /// A procedure that reads the table. `check` refuses bad arguments, `run` writes the slot of one shard, `reply` composes
    /// the reply from the [parts](crate::system::parts) of slot 0.
    pub fn reads(
        check: fn(Args<'_>) -> Result<(), PlanError>,
        run: fn(&mut FragmentContext<'_>),
        reply: fn(&ReplyContext<'_>, &mut Vec<u8>),
    ) -> Arc<TableProcedure> {
        Arc::new(TableProcedure { access: Access::TableRead, scans_values: false, check, run, reply })
    }

    /// A procedure that reads the table, [values](Procedure::scans_values) of records too; the functions are those of [`TableProcedure::reads`].
    pub fn reads_values(
        check: fn(Args<'_>) -> Result<(), PlanError>,
        run: fn(&mut FragmentContext<'_>),
        reply: fn(&ReplyContext<'_>, &mut Vec<u8>),
    ) -> Arc<TableProcedure> {
        Arc::new(TableProcedure { access: Access::TableRead, scans_values: true, check, run, reply })
    }

    /// A procedure that may change the table; the functions are those of [`TableProcedure::reads`]. It is logged, and has
    /// its place in the order of every replica, even if it changes nothing.
    pub fn writes(
        check: fn(Args<'_>) -> Result<(), PlanError>,
        run: fn(&mut FragmentContext<'_>),
        reply: fn(&ReplyContext<'_>, &mut Vec<u8>),
    ) -> Arc<TableProcedure> {
        Arc::new(TableProcedure { access: Access::TableWrite, scans_values: false, check, run, reply })
    }
}

impl Procedure for TableProcedure {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        (self.check)(args)?;
        planner.table(0, self.access).map(drop)
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        (self.run)(cx);
        Ok(())
    }

    fn scans_values(&self) -> bool {
        self.scans_values
    }

    fn reply(&self, cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        (self.reply)(cx, out);
    }
}

/// The check of a procedure that takes any arguments.
///
/// # Errors
/// None.
pub fn any_args(_args: Args<'_>) -> Result<(), PlanError> {
    Ok(())
}

/// The reply that is the sum of the integers that shards have answered.
pub fn sum_reply(cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
    Writer(out).int(sum_parts(cx.slot(0)));
}

/// The slot of a shard that only confirms.
pub fn run_ok(cx: &mut FragmentContext<'_>) {
    cx.writer().ok();
}

/// The reply OK.
pub fn ok_reply(_cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
    Writer(out).ok();
}
