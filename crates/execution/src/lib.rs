//! Execution: how one fragment of a plan is run, by every executor but the oracle.
//!
//! # How a fragment is run
//!
//! 1. A [`Step`] names the fragment: chunk, transaction, position, time, seed, and where the results of earlier fragments are.
//! 2. A [`Records`] finds what the fragment works on and hands it to the code that the step passes in.
//! 3. The step calls the procedure's code with a [`Frame`](ordain_model::Frame) and the record; the answer goes to a
//!    buffer of the caller. A panic of an abortable fragment is an abort ([`guarded`]).
//!
//! | a fragment that | is run by | on |
//! |---|---|---|
//! | reads or writes one record | [`Step::run`] | [`Records::read`], [`Records::write`] |
//! | reaches child records of its record too | [`Step::run`] | [`Records::read_parent`], [`Records::write_parent`] |
//! | is over the whole table of a shard | [`Step::run`] | [`Records::table`] |
//! | computes on several records | [`Step::compute`] | [`ShippedRecords`], which the caller gathers |
//!
//! | records | where they are | who runs on them |
//! |---|---|---|
//! | [`InPlace`] | in the store; an [`Undo`] notes what may have to be taken back | the deterministic shard, also per queue (`qstore`) |
//! | [`OnSnapshot`] | in the store, as of the end of an epoch; nothing is written | the snapshot reader; snapshot-readable fragments |
//! | [`InWorkspace`] | what an attempt has written stays in its [`Workspace`], over the committed store | participants of the commit family |
//!
//! Everything is generic and inlined: a step on records is as fast as the same code written out.
//!
//! A compute fragment may take longer than an event loop may stand still: it gives up then, and is computed elsewhere as a [`Long`].
//!
//! # What is not here
//!
//! - Which fragments are on which shard, when one may run, what becomes of its answer and who is sent what: the callers.
//! - Calls inside a transaction's code (scripts, the overlay of interactive transactions): `ordain_model::serial` runs a
//!   whole call on records in hand, with the same frame. Commands and gateways stand below this crate.
//! - `qstore` knows name, arguments and code of a queued fragment from its queue, and makes the frame itself: looking
//!   the fragment up again would cost a cache miss each.
//! - The reference executor (`model/src/reference.rs`) is the oracle, and stays apart on purpose.

mod committed;
mod in_place;
mod long;
mod shipped;
mod snapshot;
mod step;
mod tier;
mod undo;
mod workspace;

pub use committed::{Committed, Placed, Visit, digest_of, walk_overlaid};
pub use in_place::InPlace;
pub use long::{Computed, InputSlots, Long, PATIENCE};
pub use shipped::{Held, ShippedRecords};
pub use snapshot::{OnSnapshot, past_of};
pub use step::{NO_SLOTS, Name, Records, Step, guarded};
pub use tier::{Arrived, Handed, PastValues, Tier, TierSettings, discard_values, values_prefix};
pub use undo::{Touched, Undo, WRITE_LOCKED};
pub use workspace::{InWorkspace, TableChange, Workspace, Write};
