//! Execution: how one fragment of a plan is run on records, wherever those are.
//!
//! A fragment's code sees one record. [`Records`] is where the record comes from, and [`Step::run`] gives the code
//! everything else: arguments, inputs, time, seed. [`Workspace`] keeps what an attempt has written apart from the store
//! until the attempt is decided.

mod step;
mod workspace;

pub use step::{Name, Records, Step, guarded};
pub use workspace::{InWorkspace, Workspace, Write};
