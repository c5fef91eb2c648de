//! The log against the disk: crashes, damage, full disks.

mod crash;
mod damage;
mod full;
mod support;
