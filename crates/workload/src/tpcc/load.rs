//! Loading: the population that the specification prescribes (clause 4.3.3.1), in transactions of a few records.
//!
//! What a row holds is a function of the seed and of the row's own number, and it is made up where it is stored:
//! the arguments name the rows and say how large the database is, and no more. So the state is the same whoever
//! loads which part, in whatever order, on whatever engine; it holds no time but [`LOADED_MS`].
//!
//! Customers by last name are the exception: their rows are made up by the client, because each follows from all
//! the customers of its district.

use std::ops::Range;
use std::sync::Arc;

use ordain_model::{
    Abort, Access, Args, ArgsBuilder, FragmentContext, PlanError, Planner, Procedure, ProcedureId, Registry,
    ReplyContext, Value, Writer,
};

use super::random::{self, LAST_NAMES, LastName, NuRand, uniform};
use super::schema::{
    Covered, Customer, DB, DIST_INFO_BYTES, District, History, Item, MAX_DISTRICTS, Named, ORDER_LINES,
    Order, OrderLine, Prefix, Row, Stock, Warehouse,
};
use super::{DAMAGED, below_put, split_packed};
use crate::random::{Random, mix};

/// Inserts rows of WAREHOUSE, DISTRICT, CUSTOMER (with its HISTORY), ITEM and STOCK. Arguments: keys, then an
/// encoded [`Scale`].
pub const LOAD: ProcedureId = ProcedureId(1040);
/// Inserts rows of customers by last name. Arguments: keys, then for each how many C_IDs there are, 2 bytes, and
/// the C_IDs, 4 bytes each.
pub const LOAD_NAMES: ProcedureId = ProcedureId(1041);
/// Inserts rows of ORDER with what belongs to them. Arguments: the key of the district, then an encoded [`Scale`],
/// the first O_ID and the one after the last, 4 bytes each.
pub const LOAD_ORDERS: ProcedureId = ProcedureId(1042);

/// The time that loaded rows bear, milliseconds since the epoch: the same in every run.
pub const LOADED_MS: u64 = 1_000_000_000_000;
/// What each customer has paid when it is loaded, and owes the other way around.
pub const LOADED_PAYMENT_CENTS: i64 = 1_000;

pub(super) fn register(registry: &mut Registry) {
    registry.register_native(LOAD, "tpcc.load", Arc::new(LoadRows));
    registry.register_native(LOAD_NAMES, "tpcc.load_names", Arc::new(LoadNames));
    registry.register_native(LOAD_ORDERS, "tpcc.load_orders", Arc::new(LoadOrders));
}

/// How large a warehouse is. The default is the specification's (clause 4.3.3.1).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Scale {
    /// Districts of a warehouse.
    pub districts: u8,
    /// Customers of a district.
    pub customers: u32,
    /// Items, and so stocks of a warehouse.
    pub items: u32,
    /// Orders of a district, at most one for each customer.
    pub orders: u32,
    /// How many of them, the newest, are not delivered.
    pub undelivered: u32,
}

impl Default for Scale {
    fn default() -> Scale {
        Scale { districts: 10, customers: 3_000, items: 100_000, orders: 3_000, undelivered: 900 }
    }
}

impl Scale {
    /// How many last names its customers have.
    pub fn last_names(&self) -> u32 {
        self.customers.min(LAST_NAMES)
    }

    /// W_YTD as loaded, for condition 1 and 8 to hold.
    fn warehouse_ytd_cents(&self) -> i64 {
        self.district_ytd_cents() * i64::from(self.districts)
    }

    fn district_ytd_cents(&self) -> i64 {
        i64::from(self.customers) * LOADED_PAYMENT_CENTS
    }
}

/// What loaded rows are functions of, besides their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Maker {
    seed: u64,
    scale: Scale,
}

impl Maker {
    const BYTES: usize = 8 + 1 + 4 * 4;

    fn encode(&self) -> [u8; Maker::BYTES] {
        let Scale { districts, customers, items, orders, undelivered } = self.scale;
        let mut bytes = [0; Maker::BYTES];
        bytes[..8].copy_from_slice(&self.seed.to_le_bytes());
        bytes[8] = districts;
        for (i, n) in [customers, items, orders, undelivered].into_iter().enumerate() {
            bytes[9 + 4 * i..][..4].copy_from_slice(&n.to_le_bytes());
        }
        bytes
    }

    /// Reads the front of a packed argument; `None` for what describes no database.
    fn decode(bytes: &[u8]) -> Option<(Maker, &[u8])> {
        let (seed, rest) = bytes.split_first_chunk()?;
        let (districts, mut rest) = rest.split_first()?;
        let mut numbers = [0; 4];
        for number in &mut numbers {
            let (word, tail) = rest.split_first_chunk()?;
            *number = u32::from_le_bytes(*word);
            rest = tail;
        }
        let [customers, items, orders, undelivered] = numbers;
        let scale = Scale { districts: *districts, customers, items, orders, undelivered };
        let sound = (1..=MAX_DISTRICTS).contains(districts)
            && (1..=MAX_ROWS).contains(&customers)
            && (1..=MAX_ROWS).contains(&items)
            && orders <= customers
            && undelivered <= orders;
        sound.then_some((Maker { seed: u64::from_le_bytes(*seed), scale }, rest))
    }

    /// The random numbers of one row, which nothing else draws from.
    fn random(&self, table: u8, warehouse: u32, district: u8, number: u32) -> Random {
        let row = u64::from(table) << 56
            | u64::from(warehouse) << 40
            | u64::from(district) << 32
            | u64::from(number);
        Random::stream(mix(self.seed), row)
    }

    fn warehouse(&self, warehouse: u32) -> Vec<u8> {
        let mut random = self.random(b'w', warehouse, 0, 0);
        let mut texts = Texts::default();
        let name = texts.add(|out| random::text(&mut random, 6, 10, out));
        let address = texts.address(&mut random);
        Warehouse {
            ytd_cents: self.scale.warehouse_ytd_cents(),
            tax_bp: uniform(&mut random, 0, 2_000) as u16,
            name: texts.get(&name),
            street_1: texts.get(&address[0]),
            street_2: texts.get(&address[1]),
            city: texts.get(&address[2]),
            state: texts.get(&address[3]),
            zip: texts.get(&address[4]),
        }
        .encode()
    }

    fn district(&self, warehouse: u32, district: u8) -> Vec<u8> {
        let mut random = self.random(b'd', warehouse, district, 0);
        let mut texts = Texts::default();
        let name = texts.add(|out| random::text(&mut random, 6, 10, out));
        let address = texts.address(&mut random);
        let next_order = self.scale.orders + 1;
        District {
            ytd_cents: self.scale.district_ytd_cents(),
            next_order,
            oldest_new_order: next_order - self.scale.undelivered,
            tax_bp: uniform(&mut random, 0, 2_000) as u16,
            name: texts.get(&name),
            street_1: texts.get(&address[0]),
            street_2: texts.get(&address[1]),
            city: texts.get(&address[2]),
            state: texts.get(&address[3]),
            zip: texts.get(&address[4]),
        }
        .encode()
    }

    /// The number of a customer's last name, and its C_FIRST, which are drawn before all else of it.
    fn naming(&self, random: &mut Random, customer: u32, first: &mut Vec<u8>) -> u32 {
        random::text(random, 8, 16, first);
        match customer {
            1..=LAST_NAMES => customer - 1,
            _ => NuRand::LAST_NAME_LOADED.draw(random, 0, LAST_NAMES - 1),
        }
    }

    fn customer(&self, warehouse: u32, district: u8, customer: u32) -> Vec<u8> {
        let mut random = self.random(b'c', warehouse, district, customer);
        let mut texts = Texts::default();
        let mut name = 0;
        let first = texts.add(|out| name = self.naming(&mut random, customer, out));
        let address = texts.address(&mut random);
        let phone = texts.add(|out| random::digits(&mut random, 16, out));
        let data = texts.add(|out| random::text(&mut random, 300, 500, out));
        Customer {
            balance_cents: -LOADED_PAYMENT_CENTS,
            ytd_payment_cents: LOADED_PAYMENT_CENTS,
            payments: 1,
            deliveries: 0,
            credit_limit_cents: 5_000_000,
            since_ms: LOADED_MS,
            discount_bp: uniform(&mut random, 0, 5_000) as u16,
            first: texts.get(&first),
            middle: b"OE",
            last: &LastName::new(name),
            street_1: texts.get(&address[0]),
            street_2: texts.get(&address[1]),
            city: texts.get(&address[2]),
            state: texts.get(&address[3]),
            zip: texts.get(&address[4]),
            phone: texts.get(&phone),
            credit: if random.below(10) == 0 { b"BC" } else { b"GC" },
            data: texts.get(&data),
        }
        .encode()
    }

    fn history(&self, warehouse: u32, district: u8, customer: u32) -> Vec<u8> {
        let mut random = self.random(b'h', warehouse, district, customer);
        let mut data = Vec::new();
        random::text(&mut random, 12, 24, &mut data);
        History { warehouse, district, at_ms: LOADED_MS, amount_cents: LOADED_PAYMENT_CENTS, data: &data }
            .encode()
    }

    /// An item is the same in all warehouses.
    fn item(&self, item: u32) -> Vec<u8> {
        let mut random = self.random(b'i', 0, 0, item);
        let mut texts = Texts::default();
        let name = texts.add(|out| random::text(&mut random, 14, 24, out));
        let data = texts.add(|out| random::data(&mut random, 26, 50, out));
        Item {
            image: uniform(&mut random, 1, 10_000),
            price_cents: i64::from(uniform(&mut random, 100, 10_000)),
            name: texts.get(&name),
            data: texts.get(&data),
        }
        .encode()
    }

    fn stock(&self, warehouse: u32, item: u32) -> Vec<u8> {
        const DIST: u32 = MAX_DISTRICTS as u32 * DIST_INFO_BYTES as u32;
        let mut random = self.random(b's', warehouse, 0, item);
        let mut texts = Texts::default();
        let dist = texts.add(|out| random::text(&mut random, DIST, DIST, out));
        let data = texts.add(|out| random::data(&mut random, 26, 50, out));
        let quantity = uniform(&mut random, 10, 100) as i16;
        Stock {
            quantity,
            ytd: 0,
            orders: 0,
            remote_orders: 0,
            dist: texts.get(&dist),
            data: texts.get(&data),
        }
        .encode()
    }

    /// The customers of the orders of a district: O_ID 1 first.
    fn ordering_customers(&self, warehouse: u32, district: u8) -> Vec<u32> {
        random::permutation(&mut self.random(b'p', warehouse, district, 0), self.scale.customers)
    }

    /// Inserts an order with its lines, and what else it brings with it.
    fn order(
        &self,
        warehouse: u32,
        district: u8,
        order: u32,
        customer: u32,
        put: &mut dyn FnMut(Covered, &[u8]),
    ) {
        let mut random = self.random(b'o', warehouse, district, order);
        let delivered = order <= self.scale.orders - self.scale.undelivered;
        let lines = uniform(&mut random, ORDER_LINES.0, ORDER_LINES.1) as u8;
        let carrier = uniform(&mut random, 1, 10) as u8;
        let row = Order {
            customer,
            entered_ms: LOADED_MS,
            carrier: if delivered { carrier } else { 0 },
            lines,
            all_local: 1,
        };
        put(Covered::Order(order), &row.encode());
        put(Covered::Newest(customer), &order.to_le_bytes());
        if !delivered {
            put(Covered::NewOrder(order), &[]);
        }
        let mut dist_info = Vec::new();
        for line in 1..=lines {
            dist_info.clear();
            random::text(&mut random, DIST_INFO_BYTES as u32, DIST_INFO_BYTES as u32, &mut dist_info);
            let amount_cents = i64::from(uniform(&mut random, 1, 999_999));
            let row = OrderLine {
                item: uniform(&mut random, 1, self.scale.items),
                supply_warehouse: warehouse,
                delivered_ms: if delivered { LOADED_MS } else { 0 },
                quantity: 5,
                amount_cents: if delivered { 0 } else { amount_cents },
                dist_info: &dist_info,
            };
            put(Covered::OrderLine(order, line), &row.encode());
        }
    }

    /// The customers of a district whose last names have these numbers, by name, in the order of C_FIRST.
    fn customers_by_name(&self, warehouse: u32, district: u8, names: Range<u32>) -> Vec<(u32, Vec<u32>)> {
        let mut found: Vec<(u32, Vec<u8>, u32)> = Vec::new();
        let among_the_first = names.start + 1..names.end.min(self.scale.customers) + 1;
        for customer in among_the_first.chain(LAST_NAMES + 1..self.scale.customers + 1) {
            let mut first = Vec::new();
            let mut random = self.random(b'c', warehouse, district, customer);
            let name = self.naming(&mut random, customer, &mut first);
            if names.contains(&name) {
                found.push((name, first, customer));
            }
        }
        found.sort_unstable();
        let mut by_name: Vec<(u32, Vec<u32>)> = Vec::new();
        for (name, _, customer) in found {
            match by_name.last_mut().filter(|last| last.0 == name) {
                Some((_, customers)) => customers.push(customer),
                None => by_name.push((name, vec![customer])),
            }
        }
        by_name
    }
}

/// The most customers of a district and items there can be.
pub const MAX_ROWS: u32 = 1_000_000;

/// Texts in one buffer, until the row that borrows them is encoded.
#[derive(Default)]
struct Texts {
    bytes: Vec<u8>,
}

impl Texts {
    fn add(&mut self, write: impl FnOnce(&mut Vec<u8>)) -> Range<usize> {
        let start = self.bytes.len();
        write(&mut self.bytes);
        start..self.bytes.len()
    }

    /// Two streets, city, state, zip.
    fn address(&mut self, random: &mut Random) -> [Range<usize>; 5] {
        [
            self.add(|out| random::text(random, 10, 20, out)),
            self.add(|out| random::text(random, 10, 20, out)),
            self.add(|out| random::text(random, 10, 20, out)),
            self.add(|out| random::text(random, 2, 2, out)),
            self.add(|out| {
                random::digits(random, 4, out);
                out.extend_from_slice(b"11111");
            }),
        ]
    }

    fn get(&self, range: &Range<usize>) -> &[u8] {
        &self.bytes[range.clone()]
    }
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
                Row::Customer(..) => planner.covering(),
                Row::Names(..) => return Err(DAMAGED),
                _ => {}
            }
        }
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let packed = cx.args.iter().last().map_or(&[][..], |packed| packed.bytes);
        let (Some((maker, _)), Some(named)) = (Maker::decode(packed), Named::read(cx.key.bytes)) else {
            return Ok(());
        };
        let warehouse = named.warehouse;
        let row = match named.row {
            Row::Warehouse => maker.warehouse(warehouse),
            Row::District(district) => maker.district(warehouse, district),
            Row::Customer(district, customer) => {
                let history = maker.history(warehouse, district, customer);
                below_put(cx, Covered::History(1), history);
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
        }
        Ok(())
    }

    fn run(&self, code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let packed = cx.args.iter().last().map_or(&[][..], |packed| packed.bytes);
        let list = name_lists(packed).nth(usize::from(code)).unwrap_or_default();
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
        planner.covering();
        planner.silent();
        Ok(())
    }

    fn run(&self, _code: u16, cx: &mut FragmentContext<'_>) -> Result<(), Abort> {
        let packed = cx.args.iter().last().map_or(&[][..], |packed| packed.bytes);
        let Some(Named { warehouse, row: Row::District(district), .. }) = Named::read(cx.key.bytes) else {
            return Ok(());
        };
        let Some((maker, orders)) = LoadOrders::orders(packed) else { return Ok(()) };
        let customers = maker.ordering_customers(warehouse, district);
        for (order, customer) in orders.clone().zip(&customers[orders.start as usize - 1..]) {
            maker.order(warehouse, district, order, *customer, &mut |covered, row| {
                below_put(cx, covered, row.to_vec());
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
    /// How many rows a transaction inserts; a customer comes with a row of history.
    const ROWS: u32 = 128;
    /// How many orders one inserts: some 12 rows each.
    const ORDERS: u32 = 10;

    /// Population `number` of `populations` loads its share.
    pub(super) fn new(seed: u64, scale: Scale, warehouses: u32, number: usize, populations: usize) -> Loader {
        let parts = u64::from(warehouses) * Loader::parts(&scale);
        let edge = |n: usize| (u128::from(parts) * n as u128 / populations.max(1) as u128) as u64;
        Loader { maker: Maker { seed, scale }, left: edge(number)..edge(number + 1), now: None }
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
        self.now = self.left.next().map(|n| (1 + (n / parts) as u32, Loader::part(scale, n % parts)));
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
                    push(Row::Names(*district, &LastName::new(name)));
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
