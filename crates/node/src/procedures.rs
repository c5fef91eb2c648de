//! Every procedure that a node has, under the numbers that its log knows them by.

use std::sync::Arc;

use ordain_model::{Layout, Registry, system};

/// All procedures, for nodes whose records lie where a layout says.
pub fn of(layout: &Layout) -> Arc<Registry> {
    let registry = Arc::unwrap_or_clone(all());
    Arc::new(registry.placing(layout.placement().clone()))
}

/// The system's procedures, the Redis commands, and the workloads, which clients call with FCALL; no region has a prefix.
pub fn all() -> Arc<Registry> {
    let mut registry = Registry::default();
    system::register(&mut registry);
    ordain_commands::register(&mut registry);
    ordain_workload::register(&mut registry);
    #[cfg(debug_assertions)]
    fatal::register(&mut registry);
    Arc::new(registry)
}

/// A procedure for tests of what operators do about a transaction that ends the process. No release has it, and no other
/// build unless the environment says so.
#[cfg(debug_assertions)]
mod fatal {
    use std::sync::Arc;

    use ordain_model::{
        Abort, Access, Args, FragmentContext, PlanError, Planner, Procedure, ProcedureId, Registry,
        ReplyContext, Writer,
    };

    /// `kill`: the procedure ends the process. Anything else: it does not.
    const VARIABLE: &str = "ORDAIN_TEST_FATAL";
    const FATAL: ProcedureId = ProcedureId(1999);

    pub(super) fn register(registry: &mut Registry) {
        if let Ok(what) = std::env::var(VARIABLE) {
            registry.register_native(FATAL, "test.fatal", Arc::new(Fatal { kills: what == "kill" }));
        }
    }

    /// Writes `survived` to all of its keys, if it survives.
    struct Fatal {
        kills: bool,
    }

    impl Procedure for Fatal {
        fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
            args.iter().try_for_each(|key| planner.key(0, Access::Write, key).map(drop))
        }

        fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
            if self.kills {
                std::process::abort();
            }
            cx.cell_mut().put_string(b"survived");
            Ok(())
        }

        fn reply(&self, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
            Writer(out).ok();
        }
    }
}
