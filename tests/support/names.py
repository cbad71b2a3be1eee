"""Odd names of topics, as publishers of each protocol may write them."""

from __future__ import annotations

ODD_NAMES = {
    "wamp": (
        *("com.shop.order", "com.shop", "chat", "com.shop.order_2", "COM.Shop.ORDER", "a-b.c_d", "1.2.3", "0"),
        *("http://example.com/a", "/a.b", "a/b.c", "a//b", "/", "//", "*.**", "com.*.x", "a$b.(c)", "~@,;:", "{x}"),
        *("café.au.lait", "com.\u6771\u4eac.x", "x.\U0001f916", "100%.+50%", "a+b.c%20d", "a%.b_"),
        *("a!b", "!", "a!2e.b", "a!2eb", "a!212e", "!21!20", "a!c2!a0", "a!21c2!a0.x", "!41", "a!ff", "\\d.'q'.\"w\""),
    ),
    "nt4": (
        *("/robot/weird name %d.x", "/robot/speed", "/a", "/a/b", "/SmartDashboard/Auto Selector", "/FMSInfo/.type"),
        *("/a.b/c.d", "/ ", "/ / ", "/a b/c\td", "/new\nline", "/nul\0", "/#1", "/$x", "/100%", "/%20", "/a+b"),
        *("/a%b_c", "/café", "/\u6771\u4eac/x", "/\U0001f916", "/'quoted'", '/"double"', "/back\\slash", "/~(x)@"),
        *("/:x", "/a:b/c"),
        *("/!", "/a!2e", "/a!212e", "/!21", "/a!c3!a9", "/a!20b", "/*", "/a/**", "/{x}", "/com.shop.order"),
    ),
    "bayeux": (
        *("/chat/lobby", "/a", "/a/b", "/com/shop/order", "/A-b_c/9", "/~x/(y)", "/$a/@b", "/0", "/-", "/_"),
        *("/caf!c3!a9", "/a!20b", "/robot/weird!20name!20!25d!2ex", "/a!2eb", "/a!212eb", "/a!21212e", "/!", "/!!"),
        *("/a!", "/a!b", "/!21", "/!41", "/a!ff", "/a!2E", "/a!c3", "/a!c0!80", "/x!2fy", "/!2a/!2a!2a", "/a!21c3!a9"),
        *("/!7e", "/!3ax"),
    ),
}  # fmt: skip
