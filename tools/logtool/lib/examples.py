"""Examples at the end of each command's `--help`: command lines to copy, without the leading `logtool`."""

from __future__ import annotations

from typing import Final

EXAMPLES: Final[dict[str, tuple[str, ...]]] = {
    "status": ("status", "status --watch 2", "--server http://127.0.0.1:9180 status -o json"),
    "top": ("top", "top --every 0.5", "top --once -o json"),
    "check": ("check --disk-free 10 --lag 100000", "check --format nagios"),
    "topics list": ("topics list", "topics list 'order*' -o json"),
    "topics show": ("topics show orders",),
    "topics create": (
        "topics create orders",
        "topics create clicks --partitions 4 retention=7d segment_bytes=64MiB",
        "topics create samples durability=interval sync_interval=100ms",
    ),
    "topics set": ("topics set orders retention_bytes=10GiB", "topics set orders retention_bytes=default"),
    "topics trim": ("topics trim orders --before @-7d --dry-run", "topics trim clicks:3 --before 1000 --yes"),
    "topics delete": ("topics delete orders",),
    "cat": (
        "cat orders >orders.txt",
        "cat orders --from -10 -o json",
        r"cat clicks:3 --from @-1h --format '%o %t %k %v\n'",
        "cat orders --where /customer/id=17 --limit 5",
    ),
    "tail": ("tail orders", "tail orders --limit 3", "tail orders --from @-10m --contains error"),
    "publish": (
        "publish orders orders.txt",
        "publish clicks:3 --via tank --key-delimiter = clicks.txt",
        "publish images --whole a.png b.png",
        "publish orders --retry 60 --window 20000 orders.txt",
    ),
    "bench publish": ("bench publish --via tank", "bench publish --records 1000000 --window 20000 -o json"),
    "bench consume": ("bench consume --via fujin", "bench consume --topic orders"),
    "bench latency": ("bench latency --via fujin", "bench latency --durability never --records 5000"),
    "connections list": ("connections list", "connections list figg", "connections list '10.0.0.*'"),
    "connections close": ("connections close 17",),
    "console": ("console",),
    "sessions list": ("sessions list",),
    "sessions show": ("sessions show 6f1c",),
    "sessions drop": ("sessions drop 6f1c",),
    "commits list": ("commits list",),
    "commits abandon": ("commits abandon nightly-load",),
    "subscriptions list": ("subscriptions list", "subscriptions list 'jobs*' -o json"),
    "subscriptions show": ("subscriptions show 17",),
    "subscriptions pending": ("subscriptions pending 17",),
    "subscriptions reset": ("subscriptions reset 17 --to earliest --dry-run", "subscriptions reset 17 --to @-1h"),
    "subscriptions pause": ("subscriptions pause 17",),
    "subscriptions resume": ("subscriptions resume 17",),
    "subscriptions redrive": ("subscriptions redrive 17 --limit 100",),
    "subscriptions delete": ("subscriptions delete 17",),
    "groups list": ("groups list", "groups list 'bill*' --protocol http -o json"),
    "groups show": ("groups show billing", "groups show billing --protocol fujin --topic orders"),
    "groups create": ("groups create billing orders", "groups create billing orders --from latest"),
    "groups reset": ("groups reset billing --to @-1h --dry-run", "groups reset billing --to earliest --yes"),
    "groups pause": ("groups pause billing", "groups pause billing --protocol http --topic orders"),
    "groups resume": ("groups resume billing",),
    "groups delete": ("groups delete billing",),
    "keys list": ("keys list",),
    "keys add": ("keys add shop --publish 'orders*'", "keys add billing --subscribe orders --file keys.jsonl"),
    "keys rotate": ("keys rotate shop", "keys rotate shop --end-old"),
    "keys revoke": ("keys revoke shop",),
    "keys test": ("keys test shop publish orders",),
    "definitions export": ("definitions export >topics.json", "definitions export 'order*' >orders.json"),
    "definitions import": (
        "definitions import topics.json --dry-run",
        "--server http://127.0.0.1:9180 definitions import topics.json --yes",
    ),
    "import blipmq-wal": ("import blipmq-wal blipmq.wal",),
    "certificates make": (
        "certificates make server --host logs.example.com",
        "certificates make client billing",
        "certificates make server --dir /etc/quintlog/certificates",
    ),
    "certificates show": ("certificates show certificates/*.pem",),
    "context list": ("context list",),
    "context add": (
        "context add here --data-dir data --use",
        "context add shop --server http://10.0.0.5:9180 --token-file shop.token",
    ),
    "context use": ("context use shop", "context use --none"),
    "context remove": ("context remove shop",),
    "config show": ("config show --config quintlog.toml --changed",),
    "config check": ("config check --config quintlog.toml",),
    "config reload": ("config reload",),
    "generate completion": (
        "generate completion bash >~/.local/share/bash-completion/completions/logtool",
        "generate completion zsh >~/.zsh/_logtool",
        "generate completion fish >~/.config/fish/completions/logtool.fish",
    ),
    "generate systemd": (
        "generate systemd >quintlog.service",
        "generate systemd --user log --config /etc/quintlog.toml",
    ),
    "generate man": ("generate man ~/.local/share/man", "generate man /usr/local/share/man"),
    "generate prometheus": ("generate prometheus >prometheus.yml",),
    "generate alerts": ("generate alerts --lag 10000 >quintlog-alerts.yml",),
    "generate grafana": ("generate grafana >quintlog.json",),
    "debug bundle": ("debug bundle", "debug bundle -O report.tar.gz --log server.log"),
    "dump segment": (
        "dump segment data/topics/1/0/00000000000000000001.log",
        "dump segment data/topics/1/0/00000000000000000001.log --records",
    ),
    "dump topic": ("dump topic orders", "dump topic clicks:3 -o json"),
    "repair": ("repair", "repair data --apply"),
    "backup": ("backup backups/2026-11-27", "--data-dir /var/lib/quintlog backup /srv/log-backup -o json"),
    "restore": ("restore backups/2026-11-27 data",),
    "archive-segments": ("archive-segments /srv/archive", "archive-segments s3://bucket/log?region=eu-west-1"),
    "archive-table": ("archive-table /srv/table", "archive-table s3://bucket/table --topic 'orders*'"),
    "spark": ("spark", "spark audit --help"),
    "verify": ("verify", "verify data/topics/1/0/00000000000000000001.log", "verify --repair-plan"),
}


def examples_text(command_path: str) -> str:
    """The block at the end of a command's help (without indentation); empty when it has none."""
    lines = EXAMPLES.get(command_path.removeprefix("logtool").strip(), ())
    return "\n".join(f"logtool {line}" for line in lines)
