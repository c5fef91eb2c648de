//! The population that a database starts from (clause 4.3.3.1): what each loaded row holds.
//!
//! A row is a function of the seed and of its own number, and of nothing else: the state does not depend on who loads
//! which part, in whatever order, on whatever engine; it holds no time but [`LOADED_MS`].

use std::ops::Range;

use super::random::{self, LAST_NAMES, NuRand, last_name, uniform};
use super::rows::{Customer, DIST_INFO_BYTES, District, History, Item, Order, OrderLine, Stock, Warehouse};
use super::schema::{Child, MAX_DISTRICTS, ORDER_LINES};
use crate::parameters::parameters;
use ordain_model::random::{Random, mix};

/// The time that loaded rows bear, milliseconds since the epoch: the same in every run.
pub const LOADED_MS: u64 = 1_000_000_000_000;
/// The payment of each loaded customer, and its balance the other way around.
pub const LOADED_PAYMENT_CENTS: i64 = 1_000;

parameters! {
    /// The size of a warehouse. The default is the specification's (clause 4.3.3.1).
    #[derive(Copy, Eq)]
    pub struct Scale {
        /// The districts of a warehouse.
        pub districts: u8 = 10,
        /// The customers of a district.
        pub customers: u32 = 3_000,
        /// The items, and so the stocks of a warehouse.
        pub items: u32 = 100_000,
        /// The orders of a district, at most one for each customer.
        pub orders: u32 = 3_000,
        /// The number of them, the newest, that are not delivered.
        pub undelivered: u32 = 900,
    }
}

impl Scale {
    /// The number of last names of the customers.
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

/// The input of loaded rows, besides their names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Maker {
    pub(super) seed: u64,
    pub(super) scale: Scale,
}

impl Maker {
    pub(super) const BYTES: usize = 8 + 1 + 4 * 4;

    pub(super) fn encode(&self) -> [u8; Maker::BYTES] {
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
    pub(super) fn decode(bytes: &[u8]) -> Option<(Maker, &[u8])> {
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

    pub(super) fn warehouse(&self, warehouse: u32) -> Vec<u8> {
        let mut random = self.random(b'w', warehouse, 0, 0);
        let mut texts = Texts::default();
        let named = texts.name_and_address(&mut random);
        let [name, street_1, street_2, city, state, zip] = named.each_ref().map(|text| texts.get(text));
        let (ytd_cents, tax_bp) = (self.scale.warehouse_ytd_cents(), uniform(&mut random, 0, 2_000) as u16);
        Warehouse { ytd_cents, tax_bp, name, street_1, street_2, city, state, zip }.encode()
    }

    pub(super) fn district(&self, warehouse: u32, district: u8) -> Vec<u8> {
        let mut random = self.random(b'd', warehouse, district, 0);
        let mut texts = Texts::default();
        let named = texts.name_and_address(&mut random);
        let [name, street_1, street_2, city, state, zip] = named.each_ref().map(|text| texts.get(text));
        let (ytd_cents, next_order) = (self.scale.district_ytd_cents(), self.scale.orders + 1);
        District {
            ytd_cents,
            next_order,
            oldest_new_order: next_order - self.scale.undelivered,
            tax_bp: uniform(&mut random, 0, 2_000) as u16,
            name,
            street_1,
            street_2,
            city,
            state,
            zip,
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

    pub(super) fn customer(&self, warehouse: u32, district: u8, customer: u32) -> Vec<u8> {
        let mut random = self.random(b'c', warehouse, district, customer);
        let mut texts = Texts::default();
        let mut name = 0;
        let first = texts.add(|out| name = self.naming(&mut random, customer, out));
        let address = texts.address(&mut random);
        let phone = texts.add(|out| random::digits(&mut random, 16, out));
        let data = texts.add(|out| random::text(&mut random, 300, 500, out));
        let [street_1, street_2, city, state, zip] = address.each_ref().map(|text| texts.get(text));
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
            last: &last_name(name),
            street_1,
            street_2,
            city,
            state,
            zip,
            phone: texts.get(&phone),
            credit: if random.below(10) == 0 { b"BC" } else { b"GC" },
            data: texts.get(&data),
        }
        .encode()
    }

    pub(super) fn history(&self, warehouse: u32, district: u8, customer: u32) -> Vec<u8> {
        let mut random = self.random(b'h', warehouse, district, customer);
        let mut data = Vec::new();
        random::text(&mut random, 12, 24, &mut data);
        History { warehouse, district, at_ms: LOADED_MS, amount_cents: LOADED_PAYMENT_CENTS, data: &data }
            .encode()
    }

    /// An item is the same in all warehouses.
    pub(super) fn item(&self, item: u32) -> Vec<u8> {
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

    pub(super) fn stock(&self, warehouse: u32, item: u32) -> Vec<u8> {
        const DIST: u32 = MAX_DISTRICTS as u32 * DIST_INFO_BYTES as u32;
        let mut random = self.random(b's', warehouse, 0, item);
        let mut texts = Texts::default();
        let dist = texts.add(|out| random::text(&mut random, DIST, DIST, out));
        let data = texts.add(|out| random::data(&mut random, 26, 50, out));
        let row = Stock { dist: texts.get(&dist), data: texts.get(&data), ..Stock::default() };
        Stock { quantity: row.loaded_quantity(), ..row }.encode()
    }

    /// The customers of the orders of a district: O_ID 1 first.
    pub(super) fn ordering_customers(&self, warehouse: u32, district: u8) -> Vec<u32> {
        random::permutation(&mut self.random(b'p', warehouse, district, 0), self.scale.customers)
    }

    /// Inserts an order with its lines, and what else it brings with it.
    pub(super) fn order(
        &self,
        warehouse: u32,
        district: u8,
        order: u32,
        customer: u32,
        put: &mut dyn FnMut(Child, &[u8]),
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
        put(Child::Order(order), &row.encode());
        put(Child::Newest(customer), &order.to_le_bytes());
        if !delivered {
            put(Child::NewOrder(order), &[]);
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
            put(Child::OrderLine(order, line), &row.encode());
        }
    }

    /// The customers of a district whose last names have these numbers, by name, in the order of C_FIRST.
    pub(super) fn customers_by_name(
        &self,
        warehouse: u32,
        district: u8,
        names: Range<u32>,
    ) -> Vec<(u32, Vec<u32>)> {
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

    /// The name of a warehouse or district, and the address.
    fn name_and_address(&mut self, random: &mut Random) -> [Range<usize>; 6] {
        let name = self.add(|out| random::text(random, 6, 10, out));
        let [street_1, street_2, city, state, zip] = self.address(random);
        [name, street_1, street_2, city, state, zip]
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
