//! Commands on keys, whatever they hold.

mod expire;
mod introspect;
mod relocate;
mod whole;

use std::sync::Arc;

use ordain_model::{Cell, CellMut, Registry, Writer};

use crate::ids;
use crate::shape::{Input, ReadEach, ReadKey, Refusal, Sparing, Together, WriteEach, any};

/// Adds the procedures.
pub(crate) fn register(registry: &mut Registry) {
    registry.register(
        ids::DEL,
        "del",
        Arc::new(Sparing(WriteEach {
            step: 1,
            check: |_| Ok(()),
            is_blind: false,
            run: del,
            together: Together::Sum,
        })),
    );
    let exists = ReadEach { run: exists, together: Together::Sum };
    registry.register(ids::EXISTS, "exists", Arc::new(Sparing(exists)));
    registry.register(ids::TYPE, "type", Arc::new(Sparing(ReadKey { check: any, run: type_of })));
    expire::register(registry);
    introspect::register(registry);
    relocate::register(registry);
    whole::register(registry);
}

fn del(_input: Input<'_>, mut cell: CellMut<'_>, w: &mut Writer<'_>) -> Result<(), Refusal> {
    let present = cell.value.is_some();
    if present {
        cell.delete();
    }
    w.int(i64::from(present));
    Ok(())
}

fn exists(cell: &Cell, w: &mut Writer<'_>) {
    w.int(i64::from(cell.value.is_some()));
}

fn type_of(_input: Input<'_>, cell: &Cell, w: &mut Writer<'_>) -> Result<(), Refusal> {
    w.status(cell.value.as_ref().map_or("none", |value| value.type_name()));
    Ok(())
}
