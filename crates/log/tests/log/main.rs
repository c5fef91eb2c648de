//! The log against the disk: crashes, damage, full disks, copies.

mod copy;
mod crash;
mod damage;
mod full;
mod support;
