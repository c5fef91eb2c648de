//! A log of any entry type, written by one node, agreed on by the members of a group, or shipped from one to the others.
mod catch_up;
mod configuration_service;
mod entry;
mod group;
mod input_log;
mod message;
#[cfg(test)]
mod tests;

pub use catch_up::{CatchUps, Index, Piece, is_read};
pub use configuration_service::{
    Arrival, ConfigurationEntry, ConfigurationService, ConfigurationServiceSettings, Decision, Decisions,
    Ending, Eviction, Fence, LeadershipRecord, LeadershipRecords, configuration_service_members,
};
pub use entry::{EntryType, epoch_of};
pub use group::{
    GroupContent, GroupEntry, GroupError, GroupJournal, GroupLog, GroupRecord, GroupSettings, Standing,
    found_after,
};
pub use input_log::{InputLog, LogSettings, RESERVE, ShippingSettings, resume_after};
pub use message::{Carrier, Configuration, Covered, GroupMessage, Held, Log, Message, Ship};
