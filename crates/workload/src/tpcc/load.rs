//! Loading the [population](super::population), in transactions of some hundred rows.
//!
//! The arguments of these name the rows and say how large the database is, and no more: what a row holds is made up
//! where it is stored. Customers by last name are the exception: their rows are made up by the client, because each
//! follows from all the customers of its district.

use std::ops::Range;
use std::sync::Arc;

use ordain_model::{
    Abort, Access, Args, ArgsBuilder, FragmentContext, PlanError, Planner, Procedure, ProcedureId, Registry,
    ReplyContext, Value, Writer,
};

use super::population::{Maker, Scale};
use super::random::last_name;
use super::schema::{Child, DB, Named, Prefix, Row};
use super::{DAMAGED, last, put_child, split_packed};
use crate::pool::share_of;

/// Inserts rows of WAREHOUSE, DISTRICT, CUSTOMER (with its HISTORY), ITEM and STOCK. Arguments: keys, then an
/// encoded [`Scale`].
pub const LOAD: ProcedureId = ProcedureId(1040);
/// Inserts rows of customers by last name. Arguments: keys, then for each how many C_IDs there are, 2 bytes, and
/// the C_IDs, 4 bytes each.
pub const LOAD_NAMES: ProcedureId = ProcedureId(1041);
/// Inserts rows of ORDER with what belongs to them. Arguments: the key of the district, then an encoded [`Scale`],
/// the first O_ID and the one after the last, 4 bytes each.
pub const LOAD_ORDERS: ProcedureId = ProcedureId(1042);

pub(super) fn register(registry: &mut Registry) {
    registry.register_native(LOAD, "tpcc.load", Arc::new(LoadRows));
    registry.register_native(LOAD_NAMES, "tpcc.load_names", Arc::new(LoadNames));
    registry.register_native(LOAD_ORDERS, "tpcc.load_orders", Arc::new(LoadOrders));
}

struct LoadRows;

impl Procedure for LoadRows {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (keys, packed) = split_packed(args)?;
        let (_, []) = Maker::decode(packed).ok_or(DAMAGED)? else { return Err(DAMAGED) };
        for key in keys {
            let named = Named::read(key.bytes).ok_or(DAMAGED)?;
            planner.key_in(DB, 0, Access::Write, key)?;
            planner.silent();
            match named.row {
                Row::Customer(..) => planner.with_children(),
                Row::Names(..) => return Err(DAMAGED),
                _ => planner.blind(),
            }
        }
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let (Some((maker, _)), Some(named)) = (Maker::decode(last(cx.args)), Named::read(cx.key.bytes))
        else {
            return Ok(());
        };
        let warehouse = named.warehouse;
        let row = match named.row {
            Row::Warehouse => maker.warehouse(warehouse),
            Row::District(district) => maker.district(warehouse, district),
            Row::Customer(district, customer) => {
                let history = maker.history(warehouse, district, customer);
                put_child(cx, Child::History(1), history);
                maker.customer(warehouse, district, customer)
            }
            Row::Item(item) => maker.item(item),
            Row::Stock(item) => maker.stock(warehouse, item),
            Row::Names(..) => return Ok(()),
        };
        cx.cell_mut().put(Value::String(row));
        Ok(())
    }

    fn reply(&self, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).ok();
    }
}

struct LoadNames;

/// Walks the lists of C_IDs in the packed argument of [`LOAD_NAMES`], as they will be stored.
fn name_lists(mut packed: &[u8]) -> impl Iterator<Item = &[u8]> {
    std::iter::from_fn(move || {
        let (count, rest) = packed.split_first_chunk()?;
        let (list, rest) = rest.split_at_checked(4 * usize::from(u16::from_le_bytes(*count)))?;
        packed = rest;
        Some(list)
    })
}

impl Procedure for LoadNames {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (keys, packed) = split_packed(args)?;
        let (lists, bytes) = name_lists(packed).fold((0, 0), |(n, sum), list| (n + 1, sum + 2 + list.len()));
        if lists != args.len() - 1 || bytes != packed.len() || lists > usize::from(u16::MAX) {
            return Err(DAMAGED);
        }
        for (code, key) in keys.enumerate() {
            let Some(Named { row: Row::Names(..), .. }) = Named::read(key.bytes) else { return Err(DAMAGED) };
            planner.key_in(DB, code as u16, Access::Write, key)?;
            planner.silent();
            planner.blind();
        }
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let list = name_lists(last(cx.args)).nth(usize::from(code)).unwrap_or_default();
        cx.cell_mut().put(Value::String(list.to_vec()));
        Ok(())
    }

    fn reply(&self, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).ok();
    }
}

struct LoadOrders;

impl LoadOrders {
    fn orders(packed: &[u8]) -> Option<(Maker, Range<u32>)> {
        let (maker, rest) = Maker::decode(packed)?;
        let ([first, end], []) = rest.as_chunks() else { return None };
        let range = u32::from_le_bytes(*first)..u32::from_le_bytes(*end);
        (range.start >= 1 && range.start <= range.end && range.end <= maker.scale.orders + 1)
            .then_some((maker, range))
    }
}

impl Procedure for LoadOrders {
    fn plan(&self, args: Args<'_>, planner: &mut Planner<'_>) -> Result<(), PlanError> {
        let (mut keys, packed) = split_packed(args)?;
        let (Some(key), None) = (keys.next(), keys.next()) else { return Err(DAMAGED) };
        LoadOrders::orders(packed).ok_or(DAMAGED)?;
        let Some(Named { row: Row::District(_), .. }) = Named::read(key.bytes) else { return Err(DAMAGED) };
        planner.key_in(DB, 0, Access::Write, key)?;
        planner.with_children();
        planner.silent();
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let Some(Named { warehouse, row: Row::District(district), .. }) = Named::read(cx.key.bytes) else {
            return Ok(());
        };
        let Some((maker, orders)) = LoadOrders::orders(last(cx.args)) else { return Ok(()) };
        let customers = maker.ordering_customers(warehouse, district);
        for (order, customer) in orders.clone().zip(&customers[orders.start as usize - 1..]) {
            maker.order(warehouse, district, order, *customer, &mut |child, row| {
                put_child(cx, child, row.to_vec());
            });
        }
        Ok(())
    }

    fn reply(&self, _cx: &ReplyContext<'_>, out: &mut Vec<u8>) {
        Writer(out).ok();
    }
}

/// The transactions that load one population's share of the warehouses.
#[derive(Clone, Debug)]
pub(super) struct Loader {
    maker: Maker,
    warehouses: Arc<[u32]>,
    left: Range<u64>,
    now: Option<(u32, Part)>,
}

/// A transaction's worth of a warehouse.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    /// The warehouse and its districts.
    Head,
    Items(Range<u32>),
    Stocks(Range<u32>),
    Customers(u8, Range<u32>),
    /// By the numbers of the last names.
    Names(u8, Range<u32>),
    Orders(u8, Range<u32>),
}

impl Loader {
    /// The number of rows that a transaction inserts; a customer comes with a row of history.
    const ROWS: u32 = 128;
    /// The number of orders that a transaction inserts: some 12 rows each.
    const ORDERS: u32 = 10;

    /// Population `number` of `populations` loads its share of these warehouses.
    pub(super) fn new(
        seed: u64,
        scale: Scale,
        warehouses: Arc<[u32]>,
        number: usize,
        populations: usize,
    ) -> Loader {
        let parts = warehouses.len() as u64 * Loader::parts(&scale);
        let left = share_of(parts, number, populations);
        Loader { maker: Maker { seed, scale }, warehouses, left, now: None }
    }

    fn per_district(scale: &Scale) -> [u64; 3] {
        [
            u64::from(scale.customers.div_ceil(Loader::ROWS)),
            u64::from(scale.last_names().div_ceil(Loader::ROWS)),
            u64::from(scale.orders.div_ceil(Loader::ORDERS)),
        ]
    }

    fn parts(scale: &Scale) -> u64 {
        let per_district: u64 = Loader::per_district(scale).iter().sum();
        1 + 2 * u64::from(scale.items.div_ceil(Loader::ROWS)) + u64::from(scale.districts) * per_district
    }

    /// Part `n` of a warehouse.
    fn part(scale: &Scale, mut n: u64) -> Part {
        let piece = |n: u64, size: u32, of: u32| {
            let start = n as u32 * size;
            start + 1..start.saturating_add(size).min(of) + 1
        };
        if n == 0 {
            return Part::Head;
        }
        n -= 1;
        let items = u64::from(scale.items.div_ceil(Loader::ROWS));
        if n < items {
            return Part::Items(piece(n, Loader::ROWS, scale.items));
        }
        n -= items;
        if n < items {
            return Part::Stocks(piece(n, Loader::ROWS, scale.items));
        }
        n -= items;
        let [customers, names, orders] = Loader::per_district(scale);
        let per_district = customers + names + orders;
        let district = (n / per_district) as u8 + 1;
        n %= per_district;
        if n < customers {
            return Part::Customers(district, piece(n, Loader::ROWS, scale.customers));
        }
        n -= customers;
        if n < names {
            let numbers = piece(n, Loader::ROWS, scale.last_names());
            return Part::Names(district, numbers.start - 1..numbers.end - 1);
        }
        Part::Orders(district, piece(n - names, Loader::ORDERS, scale.orders))
    }

    /// The next transaction, if there is one.
    pub(super) fn load(&mut self) -> Option<ProcedureId> {
        let scale = &self.maker.scale;
        let parts = Loader::parts(scale);
        let at = |n: u64| Some((*self.warehouses.get((n / parts) as usize)?, Loader::part(scale, n % parts)));
        self.now = self.left.next().and_then(at);
        Some(match self.now.as_ref()?.1 {
            Part::Names(..) => LOAD_NAMES,
            Part::Orders(..) => LOAD_ORDERS,
            _ => LOAD,
        })
    }

    /// Writes the arguments of the transaction that [`Loader::load`] made up last; nothing if there is none.
    pub(super) fn write_args(&self, prefixes: &[Prefix], args: &mut ArgsBuilder<'_>) {
        let Some((warehouse, part)) = &self.now else { return };
        let Some(prefix) = prefixes.get(*warehouse as usize - 1) else { return };
        let mut push = |row: Row<'_>| _ = args.push(&prefix.key(row));
        let mut packed = self.maker.encode().to_vec();
        match part {
            Part::Head => {
                push(Row::Warehouse);
                (1..=self.maker.scale.districts).for_each(|district| push(Row::District(district)));
            }
            Part::Items(items) => items.clone().for_each(|item| push(Row::Item(item))),
            Part::Stocks(items) => items.clone().for_each(|item| push(Row::Stock(item))),
            Part::Customers(district, customers) => {
                customers.clone().for_each(|customer| push(Row::Customer(*district, customer)));
            }
            Part::Names(district, names) => {
                packed.clear();
                for (name, customers) in self.maker.customers_by_name(*warehouse, *district, names.clone()) {
                    push(Row::Names(*district, &last_name(name)));
                    let count = customers.len().min(usize::from(u16::MAX));
                    packed.extend_from_slice(&(count as u16).to_le_bytes());
                    customers[..count].iter().for_each(|id| packed.extend_from_slice(&id.to_le_bytes()));
                }
            }
            Part::Orders(district, orders) => {
                push(Row::District(*district));
                packed.extend_from_slice(&orders.start.to_le_bytes());
                packed.extend_from_slice(&orders.end.to_le_bytes());
            }
        }
        args.push(&packed);
    }
}
