//! Expiry, delayed flushes, and the renewal of stale (outdated) items, in virtual time.
//!
//! An answer to `mg` has the flag W if this client has to renew the item, Z if another client has
//! to renew the item, and X if the item is stale.

use crate::conversation::{START, expect, store};

#[test]
fn an_item_expires_in_its_second() {
    let kv = &mut store();
    expect(
        kv,
        100,
        "set a 0 10 1\nx\nset b 0 0 1\ny\nset c 0 1700000105 1\nz\n",
        "STORED\nSTORED\nSTORED\n",
    );
    expect(
        kv,
        104,
        "get a b c\n",
        "VALUE a 0 1\nx\nVALUE b 0 1\ny\nVALUE c 0 1\nz\nEND\n",
    );
    expect(kv, 105, "get c\nmg a t\n", "END\nHD t5\n");
    expect(kv, 109, "get a\n", "VALUE a 0 1\nx\nEND\n");
    expect(kv, 110, "get a\nadd a 0 0 1\nn\n", "END\nSTORED\n");
    expect(kv, 1_000_000_000, "get b\n", "VALUE b 0 1\ny\nEND\n");
    // An item without an expiry stays after the clock is set back.
    expect(kv, 0, "get b\n", "VALUE b 0 1\ny\nEND\n");
}

#[test]
fn touches_move_the_expiry() {
    let kv = &mut store();
    expect(kv, 0, "set a 0 10 1\nx\ntouch a 20\n", "STORED\nTOUCHED\n");
    expect(kv, 15, "gat 20 a\n", "VALUE a 0 1\nx\nEND\n");
    expect(kv, 34, "mg a t T5 t v\n", "CLIENT_ERROR duplicate flag\n");
    expect(kv, 34, "mg a t T5 v\n", "VA 1 t1\nx\n");
    expect(kv, 38, "touch a 0\n", "TOUCHED\n");
    expect(
        kv,
        99_999,
        "get a\ntouch a -1\nget a\n",
        "VALUE a 0 1\nx\nEND\nTOUCHED\nEND\n",
    );
    // An append and an increment keep the expiry.
    expect(
        kv,
        100_000,
        "set a 0 10 1\n1\nappend a 0 99 1\n2\nincr a 100\n",
        "STORED\nSTORED\n112\n",
    );
    expect(kv, 100_009, "get a\n", "VALUE a 0 3\n112\nEND\n");
    expect(kv, 100_010, "get a\n", "END\n");
}

#[test]
fn a_delayed_flush_removes_the_items_of_its_past() {
    let kv = &mut store();
    expect(kv, 10, "set a 0 0 1\nx\nflush_all 5\n", "STORED\nOK\n");
    expect(
        kv,
        13,
        "get a\nset b 0 0 1\ny\n",
        "VALUE a 0 1\nx\nEND\nSTORED\n",
    );
    expect(kv, 15, "get a b\nset a 0 0 1\nz\n", "END\nSTORED\n");
    expect(
        kv,
        16,
        "get a\nflush_all\nget a\n",
        "VALUE a 0 1\nz\nEND\nOK\nEND\n",
    );
    expect(
        kv,
        16,
        "set a 0 0 1\nw\nget a\n",
        "STORED\nVALUE a 0 1\nw\nEND\n",
    );
    expect(kv, 17, "get a\n", "VALUE a 0 1\nw\nEND\n");
}

#[test]
fn one_client_renews_a_stale_item() {
    let kv = &mut store();
    expect(kv, 0, "ms a 1 T100\nx\nmg a R30 v\n", "HD\nVA 1\nx\n");
    expect(
        kv,
        80,
        "mg a R30 v t\nmg a R30 v\n",
        "VA 1 t20 W\nx\nVA 1 Z\nx\n",
    );
    expect(kv, 80, "ms a 1 T100\ny\nmg a R30 v\n", "HD\nVA 1\ny\n");
    let answers = "HD\nVA 1 t30 X W\ny\nVA 1 Z X\ny\n";
    expect(kv, 90, "md a I T30\nmg a v t\nmg a v\n", answers);
    let answers = "EN\nVA 0 t10 W\n\nVA 0 Z\n\n";
    expect(kv, 120, "mg a v\nmg a N10 v t\nmg a N10 v\n", answers);
}

#[test]
fn the_sweep_frees_expired_items_that_nobody_reads() {
    let kv = &mut store();
    let empty = kv.memory_used();
    for at in 0..1000 {
        expect(kv, 0, &format!("set key{at} 0 10 1\nx\n"), "STORED\n");
    }
    expect(kv, 0, "set stays 0 0 1\nx\n", "STORED\n");
    let full = kv.memory_used();
    for seconds in 0..10 {
        kv.sweep(START + seconds, 1 << 20);
    }
    assert_eq!(kv.memory_used(), full);
    for seconds in 10..100 {
        for _ in 0..200 {
            kv.sweep(START + seconds, 16);
        }
    }
    assert_eq!(kv.memory_used() - empty, (full - empty) / 1001);
    expect(kv, 100, "get stays\n", "VALUE stays 0 1\nx\nEND\n");
    assert!(kv.has_no_leak());
}
