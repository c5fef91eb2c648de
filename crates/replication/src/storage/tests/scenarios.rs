//! Schedules that stand by themselves.
