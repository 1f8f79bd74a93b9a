//! Scripts for each command, each flag, each error, and the limits.

/// Returns scripts after which the server is between two commands.
pub fn all() -> Vec<Vec<u8>> {
    let mut scripts: Vec<Vec<u8>> = [CLASSIC, ERRORS, META, META_ERRORS]
        .iter()
        .flat_map(|scripts| scripts.iter())
        .map(|script| script.replace('\n', "\r\n").into_bytes())
        .collect();
    scripts.extend(limits());
    scripts.extend(ends_of_lines());
    scripts
}

/// Returns scripts that end with the connection.
pub fn closing() -> Vec<Vec<u8>> {
    let mut scripts: Vec<Vec<u8>> = [
        "quit\r\n",
        "set a 0 0 1\r\n1\r\nget a\r\nquit\r\nget a\r\n",
        "quit noreply please\r\n",
        "POST /form HTTP/1.1\r\n",
        "GET / HTTP/1.0\r\n",
        "mx HTTP/1.1\r\nquit\r\n",
        "get HTTP/1.1\r\nset HTTP/1.1\r\ntrace HTTP/1.1\r\nquit\r\n",
    ]
    .iter()
    .map(|script| script.as_bytes().to_vec())
    .collect();
    scripts.push([b'x'; 4096].to_vec());
    scripts.push([b"set ".as_slice(), &[b'k'; 4096]].concat());
    scripts.push([&[b' '; 200], b"get ".as_slice(), &[b'k'; 4096]].concat());
    scripts.push(vec![0; 8192]);
    scripts
}

const CLASSIC: &[&str] = &[
    "version\n",
    "get a\nset a 0 0 3\nabc\nget a\ngets a\nget a b a\nget b\n",
    "set a 4294967295 0 0\n\nget a\nset a 1 0 1 noreply\nx\nget a\n",
    "set a 0 0 2\nhi\nadd a 0 0 2\nno\nget a\nadd new 3 0 2\nok\nget new\n",
    "replace none 0 0 1\nx\nreplace a 7 0 4\nmore\nget a\n",
    "append a 9 9 3\n123\nget a\nprepend a 0 0 3\n000\nget a\nappend none 0 0 1\nx\nprepend none 0 0 1\nx\n",
    "set c 5 0 1\n1\ngets c\ncas c 0 0 1 99999\n2\nget c\ncas none 0 0 1 5\nx\ncas c 0 0 1 0\n3\n",
    "delete a\ndelete a\nget a\nset a 0 0 1\n1\ndelete a noreply\nget a\n",
    "set a 0 0 1\n1\ndelete a 0\ndelete a 0 noreply\ndelete a 5\ndelete a 0 x\ndelete a noreply 0\n",
    "set n 0 0 2\n10\nincr n 5\ndecr n 3\nget n\ndecr n 100\nget n\nincr n 18446744073709551615\nincr n 2\n",
    "incr none 1\ndecr none 1\nset n 0 0 3\nabc\nincr n 1\nincr n x\nincr n -1\nincr n 18446744073709551616\n",
    "set n 5 0 1\n9\nincr n 1\nget n\nincr n 90\nget n\ndecr n 95\nget n\ngets n\n",
    "set n 0 0 0\n\nincr n 1\nset n 0 0 4\n 12 \nincr n 1\nget n\nset n 0 0 3\n1 2\nincr n 1\nget n\n",
    "set n 0 0 2\n-5\nincr n 1\nset n 0 0 20\n18446744073709551615\nincr n 1\nget n\n",
    "incr n 1 noreply\ndecr n 1 noreply\nget n\nincr\nincr n\nincr n 1 2 3\n",
    "set t 0 0 1\nx\ntouch t 100\ntouch none 1\ntouch t -1\nget t\ntouch t abc\ntouch t\ntouch t 1 noreply\n",
    "set t 0 0 1\nx\ntouch t 0 noreply\nget t\ngat 100 t none t\ngats 0 t\ngat abc t\ngat 5\ngat\ngats x\ngat -1 t\nget t\n",
    "set t 0 -1 1\nx\nget t\nset t 0 2592001 1\nx\nget t\nset t 0 4294967295 1\nx\nget t\nset t 0 4294967296 1\nx\nget t\n",
    "set f 0 0 1\nx\nflush_all\nget f\nset f 0 0 1\ny\nget f\nflush_all noreply\nget f\n",
    "set f 0 0 1\nx\nflush_all 1000\nget f\nflush_all -5\nget f\nflush_all abc\nflush_all 0 noreply\nflush_all 1 2\nflush_all 1 2 3\n",
    "flush_all\nverbosity\nverbosity 1\nverbosity 0 noreply\nverbosity x\nverbosity 1 2 3\nverbosity noreply\nverbosity 0\n",
    "stats unknown\nstats reset\nshutdown\nmn\nbget a\n",
    "set a 0 0 3\r\nabcset b 0 0 1\n1\nget a b\n",
    "gets a b c d e f g h i j k l m n o p q r s t u v w x y z a b c d e f g h i j k\n",
    "set a 0 0 1\n1\nget a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a a\n",
    "get a a a a a a a a a a a a a a a a a a a a a a  \nget  a   b \n  get a\n",
];

const ERRORS: &[&str] = &[
    "\n",
    " \n",
    "x\n",
    "xx\n",
    "GET a\nSet a 0 0 1\n",
    "get\ngets\nset\nset a\nset a 0 0\nset a 0 0 1 2 3\nadd\ncas a 0 0 1\n",
    "set a x 0 1\nset a 0 x 1\nset a 0 0 x\nset a -1 0 1\nset a 4294967296 0 1\n1\nget a\n",
    "set a 0 0 -1\nset a 0 0 -1 noreply\nset a 0 0 2147483646\nset a 0 0 2147483648\nset a 0 0 99999999999999999999\n",
    "cas a 0 0 1 x\ncas a 0 0 1 -1\ncas a 0 0 1 5 noreply\nx\n",
    "set a 0 0 4294967297\n1\nget a\nset a 0 0 1x\nset a 0 0 +1\n2\nget a\nset a 0 0 01\n3\nget a\n",
    "set a 0 0 3\nabcdef\nget a\nset a 0 0 3 noreply\nabcdef\nget a\n",
    "delete\ndelete a b c d\ntouch\nflush_all a b c\nma\nmg\nms\nmd\nme\nmx a\nm\n",
    "a\nadd\nappend\nabc\ncache\ncas\nincr\nibc\ndbc\ndecr\ntbc\ntouch\nsbc\ngbc\nhello world\n",
    "get \u{e9}\nset \u{e9}\t 0 0 1\n1\nget \u{e9}\t\nset\ta 0 0 1\n",
];

const META: &[&str] = &[
    "mn\nmg none\nmg none v\nmg none k Oabc\nmg none q\nmg none q k\nmn\n",
    "ms a 3\nabc\nmg a\nmg a v\nmg a s v k f c t l h O123 q\nmg a t s f\nmg a h\nmg a h l u\n",
    "ms a 2 T100 F5 k Oxyz c q\nhi\nms a 2 T100 F5 k Oxyz c\nhi\nmg a t f v\nmg a T50 t\nmg a t T0 t\n",
    "ms a 1 T-1\nx\nmg a\nms a 1 T-1 q\nx\nmg a k q\n",
    "ms b 2 ME\nb1\nms b 2 ME\nb2\nmg b v\nms b 2 MA\n33\nmg b v\nms b 1 MP\n0\nmg b v\nms b 1 MR\nr\nmg b v\nms b 1 MS\ns\nmg b v\n",
    "ms none1 1 MA\nx\nms none1 1 MP q\nx\nms none1 1 MR k Oa\nx\nms none1 1 C5\nx\nms b 1 ME q\nx\n",
    "ms c 1\n1\nmg c c\nms c 1 C99999999\n2\nms c 1 C0\n2\nms c 1 MA C0\n3\nms c 1 MA C12345678\n3\nms c 1 ME C1\n3\nmg c v\n",
    "ms Zm9v 3 b k\nfoo\nmg Zm9v b k v\nmg foo k v\nmg Zm9v k\nme Zm9v b\nme foo\nmd Zm9v b k\nmg foo\n",
    "ms foo 3 k\nfoo\nmg Zm9v b k v\nmd Zm9v b k q\nmd Zm9v b k q\nmg /w== b k\nms /w== 1 b k c\n1\nmg /w== b k v\n",
    "mg viv N30 t v k\nmg viv N30 v\nmg viv v\nmg viv N30 c\nms viv 2\nok\nmg viv N30 v\nmg dml2Mg== b N0 k t\nmg dml2Mg== b k\nmg viv2 k\n",
    "ms r 1 T20\nx\nmg r R30 t\nmg r R30 t\nmg r R10\nms r 1 T100\nx\nmg r R30\nms r 1\nx\nmg r R30\nmg r R0\nmg r R-1\n",
    "ms s 1\nx\nmd s I\nmg s v\nmg s v\nms s 1 C1 I\ny\nmg s v t\nmd s I T30\nmg s t\nmg s t\nms s 1\nz\nmg s\nmd s I q\nmn\n",
    "ms d 1\nx\nmd d C99999999\nmd d C0\nmd d q Oabc k\nmd d q Oabc k\nmd d k O1\nmn\n",
    "ma n\nma n N0\nma n N0\nma n v\nma n MI v\nma n M+ D10 v\nma n MD v\nma n M- D4 v\nma n D100 MD v t c\nmg n v\n",
    "ma j N100 J42 v t k Oq\nma j N100 J42 v t\nma j T50 t v\nma j q\nma j q v\nmn\nma none q\nma none k O1\nmg j v\n",
    "ms x 3\nabc\nma x\nma x q\nma x v k O1\nms x 0\n\nma x\nma bnVt b N0 J7 v k\nma num v k\nma bnVt b v k\n",
    "ms m 1 c\n1\nma m C99999999\nma m C0 v\nma m C99999999 k Oabc q\nmg m v\nms m 1\n9\nma m v D1 c\nmg m v s c\n",
    "me none\nms e 3 T100 F9\nabc\nme e\nmg e\nme e\nme e b\nme a b\nme !!!! b\nme\n",
    "mg a u\nmg a P1 Lx s\nms a 1 P1 L2 h v t u l s f\n1\nmg a v\n",
    "set u 0 0 1\n1\nmg u h u\nmg u h\nmg u h\nget u\nmg u h v\n",
];

const META_ERRORS: &[&str] = &[
    "mg a v v\nmg a z\nmg a Tx\nmg a Nx Rx\nmg a N\nmg a Cx\nmg a Fx\nmg a M\nmg a Mxx\nmg a Jx\nmg a Dx\nmg a T1 T2\n",
    "mg a Tx z\nmg a z Tx\nmg a Fx Tx\nmg a Tx Fx\nmg a Mxx Jx Dx Fx\nmg !!!! b\nmg AAA b\nmg Zg==A b\nmg a b Tx\nmg \u{e9} \u{e9}\n",
    "mg a O12345678901234567890123456789012\nmg a O1234567890123456789012345678901\nms a 1\n1\nmg a s O12345678901234567890123456789012 k\n",
    "mg new1 N5 O12345678901234567890123456789012\nmg new1 v\nms a 1 O12345678901234567890123456789012\n1\nmd a O12345678901234567890123456789012\nmg a\n",
    "ms a\nms a x\nms a -1\nms a 1x\nms a 1 z\n1\nms a 1 Tx\n1\nms a 1 Mx\n1\nms a 1 Mxx\n1\nms a 1 T1 T1\n1\nms a 1 Fx\n1\nms a 1 q Cx\n1\n",
    "ms a 2147483646\nms a 2147483648\nms a 4294967297\n1\nmg a v\nms a +1\n2\nmg a v\nms !!! 1 b\n1\n",
    "ms a 1\n123\nms a 1 q\n123\nmg a v\nms a 1 q k\n12\n",
    "md a z\nmd a v v\nmd a Tx\nmd !!! b\nma a z\nma a Mx\nma a MI MI\nma a Dx\nma a M\nma !!! b\nma a O12345678901234567890123456789012\n",
    "ms n 1\n5\nma n O12345678901234567890123456789012\nmg n v\nma n q O12345678901234567890123456789012\nmg n v\nma n M\n",
    "mg a 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20\nmg a k v s t f c l h O1 q u P1 L1 T1 N1 R1 E1\n",
    "mg a k v s t f c l h O1 q u P1 L1 T100 N100 R1 I\nmg a k v s t f c l h O1 q u P1 L1 T100 N100 R1 I D1\n",
    "ms a 1 k v s t f c l h O1 q u P1 L1 T100 N100 R1 I D1\nma a k v s t f c l h O1 q u P1 L1 T100 N100 R1 I D1 J1\nmd a k v s t f c l h O1 q u P1 L1 T100 N100 R1 I D1 J1\n",
];

/// Returns scripts at the limits of keys, values and lines.
fn limits() -> Vec<Vec<u8>> {
    let mut scripts = Vec::new();
    for len in [1, 72, 73, 197, 249, 250, 251, 300, 1500] {
        let key = "k".repeat(len);
        // A `get` of a long key makes memcached drop the answers before it, so that each `get` is a
        // script of its own.
        scripts.push(format!("set {key} 0 0 3\r\nabc\r\n").into_bytes());
        for command in ["get", "get a", "gets", "gat 0", "get  "] {
            scripts.push(format!("{command} {key} b\r\n").into_bytes());
        }
        scripts.push(
            format!(
                "mg {key} v k\r\nms {key} 2 k\r\nhi\r\ntouch {key} 0\r\nincr {key} 1\r\n\
                 delete {key}\r\nmd {key}\r\nma {key} N0 v k\r\nme {key}\r\ndelete {key}\r\n\
                 add {key} 0 0 1 noreply\r\nx\r\ncas {key} 0 0 1 1\r\nx\r\nappend {key} 0 0 1\r\n1\r\n"
            )
            .into_bytes(),
        );
    }
    // The largest item has 1 MiB with all that memcached counts.
    let largest = (1 << 20) - 59 - 1;
    for len in [
        1023,
        1024,
        16 * 1024,
        524_000,
        600_000,
        largest,
        largest + 1,
        1 << 20,
        3 << 20,
    ] {
        let value = "v".repeat(len);
        let mut script = format!("set a 0 0 1\r\n1\r\nset a 0 0 {len}\r\n{value}\r\nget a\r\n");
        script += &format!("ms a {len} c\r\n{value}\r\nmg a v s\r\nincr a 1\r\nma a\r\n");
        script += &format!("add a 0 0 {len}\r\n{value}\r\nset a 5 0 {len} noreply\r\n{value}\r\n");
        script += "append a 0 0 1\r\n1\r\nprepend a 0 0 2\r\n12\r\nget a\r\ndelete a\r\n";
        scripts.push(script.into_bytes());
    }
    // Values that are no text.
    let bytes: Vec<u8> = (0..=255).collect();
    scripts.push([b"set b 0 0 256\r\n", &bytes[..], b"\r\nget b\r\nmg b v\r\n"].concat());
    // A line of many keys.
    let keys = "a b none ".repeat(5000);
    scripts.push(format!("set a 0 0 1\r\n1\r\nget {keys}\r\ngets {keys}\r\n").into_bytes());
    let keys = "a b none ".repeat(200);
    scripts.push(format!("gat 0 {keys}\r\n").into_bytes());
    scripts
}

/// Returns scripts with other ends of lines, and with NUL bytes.
fn ends_of_lines() -> Vec<Vec<u8>> {
    [
        &b"set a 0 0 1\n1\r\nget a\n"[..],
        b"set a 0 0 1\r\r\n1\r\nget a\r\r\n",
        b"\r\nversion\r\n\n\r\r\n",
        b"set a 0 0 1\r\n1\n\nget a\r\n",
        b"get a\0 b\r\nget \0\r\n\0\r\nversion\0 x\r\n",
        b"set a\0b 0 0 1\r\n1\r\nmg a\0 v\r\nget b a\0b\r\n",
        b"set a 0 0 2\r\n\r\n\r\nget a\r\nset a 0 0 4\r\nEND\n\r\nget a\r\n",
    ]
    .iter()
    .map(|script| script.to_vec())
    .collect()
}
