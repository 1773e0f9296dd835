//! Every public format, from a few lines in its own words to our records; and what is said of lines that aren't.

use plimsoll_base::{Span, Time};
use plimsoll_trace::{Format, Op, ReadOptions, TraceReader, TraceRecord};
use std::io::Cursor;

/// Reads `text` as the file `t`, its format detected.
fn read(text: &[u8]) -> (Format, Vec<TraceRecord>, TraceReader) {
    let mut r = TraceReader::from_read("t", Box::new(Cursor::new(text.to_vec())), &ReadOptions::default()).unwrap();
    let records = r.by_ref().collect::<Result<Vec<_>, _>>().unwrap();
    (r.format(), records, r)
}

/// Returns the error of reading `text`.
fn complaint(text: &[u8]) -> String {
    match TraceReader::from_read("t", Box::new(Cursor::new(text.to_vec())), &ReadOptions::default()) {
        Err(e) => e.to_string(),
        Ok(r) => r.map(|r| r.map(|_| ())).find_map(Result::err).expect("a complaint").to_string(),
    }
}

fn plain(at_ns: u64, device: u32, op: Op, offset: u64, len: u64) -> TraceRecord {
    TraceRecord::new(Time::from_nanos(at_ns), device, op, offset, len)
}

#[test]
fn our_csv_keeps_everything_it_is_given() {
    let (format, records, r) = read(
        b"t_us,dev,op,offset,size,q_us,svc_us,content,ctx\n5,a,R,4096,512,7,8.25,,java, main\n5.5,b,w,0,4096,,,00ff,\n6,a,T,0,1,,,,\n7,a,F,0,0,,,,\n",
    );
    assert_eq!(format, Format::Csv);
    assert_eq!(
        records,
        [
            TraceRecord {
                queue: Some(Span::from_nanos(7_000)),
                service: Some(Span::from_nanos(8_250)),
                context: Some(0),
                ..plain(5_000, 0, Op::Read, 4096, 512)
            },
            TraceRecord { content: Some(255), ..plain(5_500, 1, Op::Write, 0, 4096) },
            plain(6_000, 0, Op::Trim, 0, 1),
            plain(7_000, 0, Op::Flush, 0, 0),
        ]
    );
    assert_eq!(r.tables().contexts.labels(), ["java, main"]);
    assert_eq!(r.tables().devices.labels(), ["a", "b"]);
}

#[test]
fn msr_counts_hundreds_of_nanoseconds() {
    let (format, records, r) = read(
        b"128166372003061629,hm,1,Read,383496192,32768,413\r\n128166372003061639,hm,0,Write,2822144,4096,2500\r\n",
    );
    assert_eq!(format, Format::Msr);
    assert_eq!(
        records,
        [
            TraceRecord { service: Some(Span::from_nanos(41_300)), ..plain(0, 0, Op::Read, 383_496_192, 32_768) },
            TraceRecord { service: Some(Span::from_micros(250)), ..plain(1_000, 1, Op::Write, 2_822_144, 4_096) },
        ]
    );
    assert_eq!(r.tables().devices.labels(), ["hm1", "hm0"]);
}

#[test]
fn spc_counts_sectors_and_seconds() {
    let (format, records, _) = read(b"0,20941264,8192,W,0.551706\n1,5,512,r,0.551707,extra,0\n");
    assert_eq!(format, Format::Spc);
    assert_eq!(records, [plain(0, 0, Op::Write, 20_941_264 * 512, 8_192), plain(1_000, 1, Op::Read, 2_560, 512)]);
}

#[test]
fn tencent_and_systor_differ_in_fields() {
    let (format, records, _) = read(b"1538323200,12910952,128,0,1063\n1538323201,6265662,16,1,1064\n");
    assert_eq!(format, Format::Tencent);
    assert_eq!(
        records,
        [plain(0, 0, Op::Read, 12_910_952 * 512, 65_536), plain(1_000_000_000, 1, Op::Write, 6_265_662 * 512, 8_192)]
    );
    let (format, records, r) = read(
        b"Timestamp,Response,IOType,LUN,Offset,Size\n1456135200.013118000,0.001500000,W,0,42,512\n1456135200.1,,,0,42,512\n1456135200.013119000,0.0,R,1,0,8\n",
    );
    assert_eq!(format, Format::Systor);
    assert_eq!(
        records,
        [
            TraceRecord { service: Some(Span::from_micros(1_500)), ..plain(0, 0, Op::Write, 42, 512) },
            TraceRecord { service: Some(Span::ZERO), ..plain(1_000, 1, Op::Read, 0, 8) },
        ]
    );
    assert_eq!(r.skipped(), 2, "the header and the request of unknown type");
}

#[test]
fn five_numbers_are_told_apart_by_their_values() {
    let (format, records, _) = read(b"0 4 264719034 16 0\n315 3 197570570 16 1\n");
    assert_eq!(format, Format::Mqsim);
    assert_eq!(
        records,
        [plain(0, 0, Op::Write, 264_719_034 * 512, 8_192), plain(315, 1, Op::Read, 197_570_570 * 512, 8_192)]
    );
    let (format, records, _) = read(b"0.250 0 1000 8 1\n1.5 0 1 8 0\n");
    assert_eq!(format, Format::Disksim);
    assert_eq!(records, [plain(0, 0, Op::Read, 512_000, 4_096), plain(1_250_000, 0, Op::Write, 512, 4_096)]);
    for text in [&b"10.5 0 1048576 4096 1\n11.5 0 512 1024 0\n"[..], b"10.5,0,1048576,4096,1\n11.5,0,512,1024,0\n"] {
        let (format, records, _) = read(text);
        assert_eq!(format, Format::Replay);
        assert_eq!(records, [plain(0, 0, Op::Read, 1_048_576, 4_096), plain(1_000_000, 0, Op::Write, 512, 1_024)]);
    }
}

#[test]
fn fiu_has_fingerprints_in_both_forms() {
    let wanted = TraceRecord {
        content: Some(0x531e_779f_e3c4_b5a5_0000_0000_0000_0001),
        context: Some(0),
        ..plain(0, 0, Op::Write, 904_265_560 * 512, 4_096)
    };
    let (format, records, _) = read(b"7 4892 my syslogd 904265560 8 W 6 0 531e779fe3c4b5a50000000000000001\n");
    assert_eq!((format, &records[..]), (Format::Fiu, &[wanted][..]));
    let (format, records, r) = read(
        b"t_ns,pid,process,lba_sector,sectors,op,major,minor,md5\n7,4892,syslogd,904265560,8,W,6,0,531e779fe3c4b5a50000000000000001\n",
    );
    assert_eq!((format, &records[..]), (Format::FiuCsv, &[wanted][..]));
    assert_eq!((r.tables().devices.get(0), r.tables().contexts.get(0)), (Some("6:0"), Some("syslogd")));
}

#[test]
fn blkparse_events_join_into_requests() {
    let (format, records, r) = read(
        b"  8,16   3        1     1.000000000   697  Q   R 223490 + 8 [kjournald]
  8,16   3        2     1.000001000   697  G   R 223490 + 8 [kjournald]
  8,16   3        3     1.000002000   697  Q  WS 100 + 16 [a b]
  8,16   3        4     1.000003000   697  D   R 223490 + 8 [kjournald]
  8,16   3        5     1.000010000     0  C   R 223490 + 8 [0]
  8,16   3        6     1.000011000   697  Q FWS [fsync]
  8,16   3        7     1.000012000   697  m   N cfq697S / alloced
  8,16   3        8     1.000013000   697  Q   D 0 + 8 [fstrim]
CPU3 (8,16):
 Reads Queued:           1,        4KiB  Writes Queued:           1,        8KiB
",
    );
    assert_eq!(format, Format::Blkparse);
    assert_eq!(
        records,
        [
            TraceRecord {
                queue: Some(Span::from_micros(3)),
                service: Some(Span::from_micros(7)),
                context: Some(0),
                ..plain(0, 0, Op::Read, 223_490 * 512, 4_096)
            },
            TraceRecord { context: Some(1), ..plain(2_000, 0, Op::Write, 51_200, 8_192) },
            TraceRecord { context: Some(2), ..plain(11_000, 0, Op::Flush, 0, 0) },
            TraceRecord { context: Some(3), ..plain(13_000, 0, Op::Trim, 0, 4_096) },
        ]
    );
    assert_eq!(r.tables().contexts.get(1), Some("a b"));
}

#[test]
fn etw_requests_arrive_before_they_complete() {
    let header = "BeginHeader
   DiskRead,  TimeStamp,     Process Name ( PID),   ThreadID,             IrpPtr,   ByteOffset,     IOSize, ElapsedTime,  DiskNum, IrpFlags, DiskSvcTime, I/O Pri,  VolSnap,         FileObject, FileName
  DiskWrite,  TimeStamp,     Process Name ( PID),   ThreadID,             IrpPtr,   ByteOffset,     IOSize, ElapsedTime,  DiskNum, IrpFlags, DiskSvcTime, I/O Pri,  VolSnap,         FileObject, FileName
  DiskFlush,  TimeStamp,     Process Name ( PID),   ThreadID,             IrpPtr,                           ElapsedTime,  DiskNum, IrpFlags, DiskSvcTime, I/O Pri
EndHeader
OS Version: 6.0, Trace Size: 1KB
";
    let events = "  DiskRead,    2664955,  p1 ( 980),  6852, 0xfffffade6b0a2010, 0x6c80556e00, 0x00010000,  183,  3, 0x000043,  100, 0, Unknown, 0xfffffade72165e40, \"Disk5:\\s71\"
 DiskWrite,    2665000,  p2 ( 1),  6852, 0xfffffade6b0a2010, 0x1000, 0x00000200,  500,  3, 0x000043,  500, 0, Unknown, 0xfffffade72165e40, \"x\"
 FileIoRead, 2665001, whatever
 DiskFlush,    2665002,  p2 ( 1),  6852, 0xfffffade6b0a2010,  1,  3, 0x000043,  1, 0
";
    let wanted = [
        TraceRecord {
            queue: Some(Span::ZERO),
            service: Some(Span::from_micros(500)),
            context: Some(1),
            ..plain(0, 0, Op::Write, 4_096, 512)
        },
        TraceRecord {
            queue: Some(Span::from_micros(83)),
            service: Some(Span::from_micros(100)),
            context: Some(0),
            ..plain(272_000, 0, Op::Read, 0x6c_8055_6e00, 65_536)
        },
        TraceRecord {
            queue: Some(Span::ZERO),
            service: Some(Span::from_micros(1)),
            context: Some(1),
            ..plain(501_000, 0, Op::Flush, 0, 0)
        },
    ];
    for text in [format!("{header}{events}"), events.to_string()] {
        let (format, records, _) = read(text.as_bytes());
        assert_eq!((format, &records[..]), (Format::Etw, &wanted[..]));
    }
}

/// A vscsi record of either version.
fn vscsi(version: u16, command: u16, bytes: u32, lbn: u64, ts: u64) -> Vec<u8> {
    let mut b = Vec::new();
    if version == 2 {
        b.extend(command.to_le_bytes());
        b.extend((version << 8).to_le_bytes());
    }
    b.extend(1u32.to_le_bytes());
    b.extend(bytes.to_le_bytes());
    b.extend(1u32.to_le_bytes());
    if version == 1 {
        b.extend(command.to_le_bytes());
        b.extend((version << 8).to_le_bytes());
    }
    b.extend(lbn.to_le_bytes());
    b.extend(ts.to_le_bytes());
    if version == 2 {
        b.extend(250u64.to_le_bytes());
    }
    b
}

#[test]
fn vscsi_is_told_by_the_version_in_each_record() {
    for (version, format, service) in [(1, Format::Vscsi1, None), (2, Format::Vscsi2, Some(Span::from_micros(250)))] {
        let bytes = [
            vscsi(version, 0x28, 4096, 7, 1_000),
            vscsi(version, 0x12, 0, 0, 1_001),
            vscsi(version, 0x8a, 512, 9, 1_002),
        ]
        .concat();
        let (found, records, r) = read(&bytes);
        assert_eq!(found, format);
        assert_eq!(
            records,
            [
                TraceRecord { service, ..plain(0, 0, Op::Read, 3_584, 4_096) },
                TraceRecord { service, ..plain(2_000, 0, Op::Write, 4_608, 512) },
            ]
        );
        assert_eq!(r.skipped(), 1);
        let cut = complaint(&bytes[..bytes.len() - 1]);
        assert!(cut.starts_with("t: byte ") && cut.contains("the file ends after"), "{cut}");
    }
}

#[test]
fn oracle_general_objects_become_blocks() {
    let record = |t: u32, object: u64, size: u32, next: i64| {
        [&t.to_le_bytes()[..], &object.to_le_bytes(), &size.to_le_bytes(), &next.to_le_bytes()].concat()
    };
    let bytes = [record(100, 3, 4096, 2), record(100, 4, 512, -1), record(101, 3, 4096, -1)].concat();
    let (format, records, _) = read(&bytes);
    assert_eq!(format, Format::OracleGeneral);
    assert_eq!(
        records,
        [
            plain(0, 0, Op::Read, 1_536, 4_096),
            plain(0, 0, Op::Read, 2_048, 512),
            plain(1_000_000_000, 0, Op::Read, 1_536, 4_096)
        ]
    );
    let hashed = record(1, u64::MAX / 2, 100, -1);
    assert!(complaint(&hashed).contains("object size of 1"));
}

#[test]
fn wrong_lines_are_named_by_file_and_line() {
    for (text, wanted) in [
        (
            &b"t_us,dev,op,offset,size,q_us,svc_us,ctx\n0,0,R,0,512,,,\n1,0,X,0,512,,,\n"[..],
            "t:3: op: expected R, W, T or F, found `X`",
        ),
        (
            b"t_us,dev,op,offset,size,q_us,svc_us,ctx\n9,0,R,0,512,,,\n8,0,R,0,512,,,\n",
            "t:3: this request arrived 1.00us before",
        ),
        (b"t_us,dev,op,offset,size,q_us,svc_us,ctx\n0,0,R,0\n", "t:2: expected the fields"),
        (b"1,hm,1,Read,1,1,1\n\n2,hm,1,Read,x,1,1\n", "t:3: offset: expected a whole number below 2^64, found `x`"),
        (b"0,1,512,r,0.1\n0,36028797018963968,512,r,0.2\n", "t:2: lba: expected sectors"),
        (b"8,0 0 1 0.0 1 Q R 1 + 8 [x]\n8,0 0 1 zero 1 Q R 1 + 8 [x]\n", "t:2: time: expected a time"),
        (b"", "t: the trace is empty"),
        (b"hello, world\n", "t: no known trace format begins with `hello, world"),
        (b"BZh91AY&SY", "t: compressed with bzip2"),
        (b"PAR1xxxxPAR1", "t: a Parquet trace begins with"),
    ] {
        let found = complaint(text);
        assert!(found.starts_with(wanted), "wanted {wanted}\n found {found}");
    }
}

#[test]
fn late_arrivals_are_put_in_order_within_the_window() {
    let text = "0,1,512,r,0.3\n0,2,512,r,0.1\n0,3,512,r,0.2\n0,4,512,r,0.2\n";
    let (_, records, _) = read(text.as_bytes());
    assert_eq!(records.iter().map(|r| r.offset / 512).collect::<Vec<_>>(), [2, 3, 4, 1]);
    assert_eq!(records[0].arrived_at, Time::ZERO, "time counts from the earliest arrival, not the first line");
    let later = "0,1,512,r,0.3\n0,2,512,r,0.4\n0,3,512,r,0.1\n";
    for (window, read) in [(0, 2), (1, 2), (2, 3)] {
        let options = ReadOptions { window_records: Some(window), ..ReadOptions::default() };
        let r = TraceReader::from_read("t", Box::new(Cursor::new(later.as_bytes().to_vec())), &options).unwrap();
        assert_eq!(r.map_while(Result::ok).count(), read, "window {window}");
    }
}

#[test]
fn compression_is_seen_through() {
    use std::io::Write;
    let text = b"0,1,512,r,0.3\n0,2,512,r,0.4\n";
    // Two gzip members in one file, as concatenated downloads are.
    let mut gz = Vec::new();
    for half in [&text[..14], &text[14..]] {
        let mut e = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
        e.write_all(half).unwrap();
        gz.extend(e.finish().unwrap());
    }
    let zst = zstd::encode_all(&text[..], 1).unwrap();
    let plain = read(text).1;
    assert_eq!(plain.len(), 2);
    assert_eq!(read(&gz).1, plain);
    assert_eq!(read(&zst).1, plain);
    assert!(complaint(&gz[..gz.len() - 9]).contains("reading failed"));
}
